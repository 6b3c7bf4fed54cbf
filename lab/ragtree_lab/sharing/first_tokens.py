"""Time to first token with a prompt's documents in this machine's memory, in another one's, and nowhere."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple
from uuid import uuid4

import msgspec

from examine.measuring import Progress
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import KvPath
from examine.measuring.statistics import percentile
from examine.measuring.tier_rounds import carried_out, move, round_segments
from protocol.errors import InternalError
from protocol.generation import Sampling
from protocol.kv import KvMemory, Orders, PeerCopy
from protocol.plans import PrefillPlan
from protocol.tiers import Tier
from ragtree_lab.sharing.machines import TimedEngine
from ragtree_lab.sharing.tcp_copy import TcpCopy

CASES = ("local_host", "remote", "computed")


class FirstTokens(msgspec.Struct, frozen=True):
    """Prompts of ``tokens`` tokens in front of the question, with ``bytes`` of KV: medians over rounds.

    ``ttft_ms`` is keyed by where the KV was, and timed in the engine's process. Ratios are medians of the rounds'
    ratios. ``bandwidth_share_of_tcp`` compares the read of another machine's memory into the engine's blocks with a
    plain copy of as many bytes over TCP between two processes.
    """

    tokens: int
    bytes: int
    ttft_ms: dict[str, float]
    ttft_p90_ms: dict[str, float]
    remote_over_local: float
    remote_over_computed: float
    remote_bytes_per_s: float
    tcp_bytes_per_s: float
    bandwidth_share_of_tcp: float


class _Pair(NamedTuple):
    """The engine that is asked, and the one on the other machine, with its name and what memory it has."""

    near: TimedEngine
    far: TimedEngine
    far_name: str
    memory: KvMemory


class FirstTokenRounds:
    """Measures prompts of each of ``lengths`` tokens in ``rounds`` rounds, each with new documents.

    The cases take turns, one request at a time. The other machine's engine only serves meanwhile.
    """

    def __init__(self, lengths: Sequence[int], rounds: int) -> None:
        self._lengths = lengths
        self._rounds = rounds

    async def run(self, engines: Mapping[str, TimedEngine], progress: Progress) -> list[FirstTokens]:
        """Measure the first one of two ``engines``, which reads at the second one.

        Raises what the engines raise, and InternalError if KV did not come from where it was to come.
        """
        (_, near), (far_name, far) = engines.items()
        memory = (await far.info()).kv
        if memory is None or not memory.peers.addresses:
            raise InternalError("the engine serves no KV, so there is nothing to measure")
        pair = _Pair(near, far, far_name, memory)
        longest = max(self._lengths) // memory.page_tokens + 2
        with TcpCopy.opened(longest * memory.page_bytes) as tcp:
            rows = []
            for index, length in enumerate(self._lengths):
                done, total = index * self._rounds, len(self._lengths) * self._rounds
                rows.append(await self._row(pair, tcp, length, progress, done, total))
            progress("measuring first tokens", total, total)
            return rows

    async def _row(
        self, pair: _Pair, tcp: TcpCopy, length: int, progress: Progress, done: int, total: int
    ) -> FirstTokens:
        memory = pair.memory
        ttft: dict[str, list[float]] = {case: [] for case in CASES}
        rates: dict[str, list[float]] = {"remote": [], "tcp": []}
        for number in range(-1, self._rounds):
            progress("measuring first tokens", done + max(number, 0), total)
            segments = round_segments(number, 1, length, memory.page_tokens)
            path = KvPath(segments, memory.paging)
            size = path.page_count * memory.page_bytes
            came = await _round(pair, path, number)
            copied = tcp.rate(size)
            if number < 0:
                # The first round warms up both sides.
                continue
            for case, answer in came.items():
                ttft[case].append(answer.ttft_ms)
            (read,) = came["remote"].prefill.peer_reads
            rates["remote"].append(read.tokens / memory.page_tokens * memory.page_bytes / read.seconds)
            rates["tcp"].append(copied)
        return FirstTokens(
            tokens=path.tokens,
            bytes=size,
            ttft_ms={case: median(times) for case, times in ttft.items()},
            ttft_p90_ms={case: percentile(times, 90) for case, times in ttft.items()},
            remote_over_local=_ratio(ttft["remote"], ttft["local_host"]),
            remote_over_computed=_ratio(ttft["remote"], ttft["computed"]),
            remote_bytes_per_s=median(rates["remote"]),
            tcp_bytes_per_s=median(rates["tcp"]),
            bandwidth_share_of_tcp=_ratio(rates["remote"], rates["tcp"]),
        )


async def _round(pair: _Pair, path: KvPath, number: int) -> dict[str, Generation]:
    """One question in each case, in an order that turns with the rounds."""
    for engine in (pair.near, pair.far):
        await engine.generate(path.plan(f"to compute {uuid4().hex}", None, Tier.GPU), Sampling(1))
        await move(engine, path, Tier.GPU, Tier.HOST)
    came: dict[str, Generation] = {}
    turn = number % len(CASES)
    for case in CASES[turn:] + CASES[:turn]:
        came[case] = await pair.near.generate(_plan(path, pair, case), Sampling(1))
        _check(came[case], path, case)
        await carried_out(pair.near, Orders(forget=((path.namespace, path.segments[0].key),), tiers=(Tier.GPU,)))
    for engine in (pair.near, pair.far):
        await carried_out(engine, Orders(path.moves(Tier.HOST, None)))
    return came


def _plan(path: KvPath, pair: _Pair, case: str) -> PrefillPlan:
    question = f"{case} {uuid4().hex}"
    plan = path.plan(question, Tier.HOST if case == "local_host" else None, None)
    if case != "remote":
        return plan
    nodes = tuple(
        msgspec.structs.replace(node, peer=PeerCopy(pair.far_name, pair.memory.peers.addresses, Tier.HOST, pages))
        for node, pages in zip(plan.nodes, path.pages, strict=True)
    )
    return msgspec.structs.replace(plan, nodes=nodes)


def _check(came: Generation, path: KvPath, case: str) -> None:
    found = came.prefill.cached_tokens
    expected = 0 if case == "computed" else path.tokens
    if found != expected or bool(came.prefill.peer_reads) != (case == "remote"):
        raise InternalError(f"{case}: {found} of {expected} tokens were loaded, at peers {came.prefill.peer_reads}")


def _ratio(measured: list[float], baseline: list[float]) -> float:
    return median(ours / theirs for ours, theirs in zip(measured, baseline, strict=True))
