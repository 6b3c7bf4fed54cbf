"""The settings of a chaos run, and the configuration of its stack."""

import json
from enum import StrEnum

import msgspec

from loadtest.errors import BadOption
from ragtree_lab.chaos.victims import HOLDING_CONNECTIONS, Victim

INSTANCES = 2
GATEWAYS = 2


class Ingress(StrEnum):
    """Where the gateway runs: as two replicas behind Ray Serve's proxy, or in the stack's own process."""

    SERVE = "serve"
    UVICORN = "uvicorn"


class Engine(StrEnum):
    """The engine that generates answers."""

    FAKE = "fake"
    VLLM = "vllm"


def killable(ingress: Ingress) -> tuple[Victim, ...]:
    """Return the kinds that can be killed. Without a proxy, the gateway is the stack itself and does not restart."""
    behind = ingress is Ingress.SERVE
    return tuple(victim for victim in Victim if behind or victim not in HOLDING_CONNECTIONS)


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a chaos run. Raises BadOption.

    ``rate`` is in arrivals per second. Equal seeds kill the same kinds in the same order.
    """

    minutes: float
    rate: float
    seed: int
    ingress: Ingress
    engine: Engine
    victims: tuple[Victim, ...]
    overlapping: bool
    pause_s: float
    redis_away_s: float
    documents: int
    max_tokens: int
    timeout_s: float

    def __post_init__(self) -> None:
        if not_killable := set(self.victims) - set(killable(self.ingress)):
            raise BadOption(f"{', '.join(sorted(not_killable))} can only be killed with --ingress {Ingress.SERVE}")

    @property
    def lease_s(self) -> float:
        """The seconds after which the controller ends the leases of a killed gateway."""
        return 3 * self.timeout_s

    def environment(self, redis_url: str) -> dict[str, str]:
        """Return the stack's configuration as environment variables."""
        common = {
            "RAGTREE_SERVER__INGRESS": self.ingress.value,
            "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": str(INSTANCES),
            "RAGTREE_SERVING__GATEWAY__MIN_REPLICAS": str(GATEWAYS),
            "RAGTREE_REDIS__URL": redis_url,
            "RAGTREE_GATEWAY__QUERY_TIMEOUT_S": f"{self.timeout_s:g}",
        }
        if self.engine is Engine.FAKE:
            return common | {
                "RAGTREE_GENERATOR__ENGINE": "fake",
                "RAGTREE_GENERATOR__FAKE__PREFILL_TOKENS_PER_S": "4000",
                "RAGTREE_GENERATOR__FAKE__DECODE_TOKENS_PER_S": "30",
                "RAGTREE_RETRIEVER__EMBEDDER": json.dumps({"kind": "hashing"}),
            }
        return common | {
            "RAGTREE_GENERATOR__ENGINE": "vllm",
            "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
            # In bfloat16 an answer may depend on its batch and would look wrong.
            "RAGTREE_GENERATOR__DTYPE": "float32",
            "RAGTREE_GENERATOR__CPU_THREADS": "1",
        }
