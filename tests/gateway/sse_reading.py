"""A strict reader of server-sent events."""

import json
from typing import Any

TERMINAL = {"query.completed", "query.incomplete", "query.failed"}


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a complete stream. Fails on anything that is neither an event nor a comment."""
    events = []
    assert body.endswith("\n\n")
    for block in body.replace("\r\n", "\n").strip("\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        event = json.loads(data.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        events.append(event)
    return events


def only_terminal(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last event, which must be the only terminal one."""
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    return events[-1]
