"""The stack that a campaign attacks: its keys, its limits, and how it is started."""

import json
from pathlib import Path
from typing import NamedTuple

from ragtree_lab.fuzz.requests import Caller
from ragtree_lab.watched_stack import WatchedStack

JUDGED_TENANT = "judged"
STRANGERS_LIMITS = {"concurrent_queries": 2, "concurrent_uploads": 6, "tokens_per_minute": 60_000}
"""What an operator would grant callers he does not know (docs/limits.md). Requests are not limited, to try many."""


class Keys(NamedTuple):
    """The keys of a stack under attack. ``judge`` is another tenant's than ``stranger``."""

    stranger: str
    judge: str
    admin: str

    @property
    def of_callers(self) -> dict[Caller, str]:
        """The keys of those who attack."""
        return {Caller.STRANGER: self.stranger, Caller.ADMIN: self.admin}


OWN_KEYS = Keys("key-of-the-stranger", "key-of-the-judge", "key-of-the-administrator")
"""The keys of a stack that a campaign starts. It listens on this machine only."""


def new_stack(scratch: Path, log: Path) -> WatchedStack:
    """A stack with a real engine and the shipped model, two tenants and an administrator."""
    keys = [
        {"secret": OWN_KEYS.stranger, "tenant": "strangers", "limits": STRANGERS_LIMITS},
        {"secret": OWN_KEYS.judge, "tenant": JUDGED_TENANT},
    ]
    environment = {
        "RAGTREE_GATEWAY__API_KEYS": json.dumps(keys),
        "RAGTREE_GATEWAY__ADMIN_KEY": OWN_KEYS.admin,
        "RAGTREE_GENERATOR__ENGINE": "vllm",
        "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
        # In bfloat16 an answer may depend on its batch and would look wrong.
        "RAGTREE_GENERATOR__DTYPE": "float32",
        "RAGTREE_GENERATOR__CPU_THREADS": "1",
        "RAGTREE_RETRIEVER__GRAPH__KIND": "rules",
    }
    return WatchedStack(scratch / "data", log, environment)
