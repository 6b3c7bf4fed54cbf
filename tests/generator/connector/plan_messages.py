"""Messages of plans that tests write by hand."""

from collections.abc import Sequence
from typing import Any

from generator.connector.messages import RequestMessage
from protocol.plans import PlannedNode, PrefillPlan
from protocol.prompts import Prompt


def plan_message(
    name: str, namespace: str, path: Sequence[str], nodes: Sequence[PlannedNode] = (), **plan: Any
) -> RequestMessage:
    """What a request with these documents carries. ``plan`` are further fields of its plan."""
    planned = PrefillPlan(name, "engine", namespace, Prompt(()), nodes=tuple(nodes), **plan)
    return RequestMessage(name, planned, tuple(path))
