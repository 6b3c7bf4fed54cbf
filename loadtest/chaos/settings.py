"""What a run of chaos is, and the stack that it starts."""

import json
from enum import StrEnum

import msgspec

from loadtest.chaos.victims import HOLDING_CONNECTIONS, Victim
from loadtest.errors import BadOption

INSTANCES = 2
GATEWAYS = 2


class Ingress(StrEnum):
    """Where the gateway is: behind Ray Serve's proxy, as two replicas, or beside it, in the stack's own process."""

    SERVE = "serve"
    UVICORN = "uvicorn"


class Engine(StrEnum):
    """What answers."""

    FAKE = "fake"
    VLLM = "vllm"


def killable(ingress: Ingress) -> tuple[Victim, ...]:
    """What can be killed. Without a proxy, the gateway is the stack itself, which nothing brings back."""
    behind = ingress is Ingress.SERVE
    return tuple(victim for victim in Victim if behind or victim not in HOLDING_CONNECTIONS)


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``rate`` is arrivals a second; equal ``seed``s kill the same kinds in the same order. Raises BadOption."""

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
        if strange := set(self.victims) - set(killable(self.ingress)):
            raise BadOption(f"{', '.join(sorted(strange))}: only with --ingress {Ingress.SERVE} can they be killed")

    def environment(self, redis_url: str) -> dict[str, str]:
        """The stack's configuration, as its command line reads it.

        Leases that a killed gateway leaves behind are taken back when no query can still hold one.
        """
        common = {
            "RAGTREE_SERVER__INGRESS": self.ingress.value,
            "RAGTREE_SERVING__GENERATOR__MIN_REPLICAS": str(INSTANCES),
            "RAGTREE_SERVING__GATEWAY__MIN_REPLICAS": str(GATEWAYS),
            "RAGTREE_REDIS__URL": redis_url,
            "RAGTREE_GATEWAY__QUERY_TIMEOUT_S": f"{self.timeout_s:g}",
            "RAGTREE_CONTROLLER__LEASE_S": f"{self.timeout_s:g}",
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
            # In bfloat16 an answer may change with what is computed beside it, and would be taken for a wrong one.
            "RAGTREE_GENERATOR__DTYPE": "float32",
            "RAGTREE_GENERATOR__CPU_THREADS": "1",
        }
