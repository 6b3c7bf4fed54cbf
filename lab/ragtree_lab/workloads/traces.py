"""Readers of request traces: a plain format, RAGPulse and Mooncake. Compression and format are detected.

Traces are read line by line; no request is kept. The plain format has one JSON object per line:

    {"t": 0.5, "docs": [{"id": "a", "tokens": 512}], "question_tokens": 20}

``t`` is in seconds and never falls. ``output_tokens``, ``system_tokens`` and ``system_id`` are optional. A document
must have the same number of tokens everywhere; this is not checked. Unknown fields are ignored.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

from examine.evaluation.question_file import numbered_lines
from protocol.errors import ConfigError
from ragtree_lab.workloads.json_lines import JsonLines
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload

MOONCAKE_BLOCK_TOKENS = 512

Count = Annotated[int, msgspec.Meta(ge=0)]
Length = Annotated[int, msgspec.Meta(ge=1)]


class _Timed(msgspec.Struct, frozen=True):
    t: float


R = TypeVar("R", bound=_Timed)


class TraceFile(Workload, Generic[R]):
    """A trace with one record per request.

    Reading raises ConfigError for an invalid line, or if time goes backwards.
    """

    def __init__(self, name: str, lines: JsonLines[R]) -> None:
        self.name = name
        self._lines = lines

    @cached_property
    def length(self) -> int | None:
        """The number of lines, counted without decoding."""
        return sum(1 for _ in numbered_lines(self._lines.path))

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests in the file's order."""
        last_s: float | None = None
        for number, record in self._lines:
            if last_s is not None and record.t < last_s:
                raise self._lines.fault(number, f"time goes backwards, from {last_s} to {record.t} s")
            last_s = record.t
            yield self._request(record, number)

    @abstractmethod
    def _request(self, record: R, number: int) -> TraceRequest:
        """Return the request of this line's record."""


class _PlainDocument(msgspec.Struct, frozen=True):
    id: str
    tokens: Length


class PlainRecord(_Timed, frozen=True):
    """A line of the plain format."""

    docs: tuple[_PlainDocument, ...]
    question_tokens: Count
    output_tokens: Count = 0
    system_tokens: Count = 0
    system_id: str = ""


class PlainTrace(TraceFile[PlainRecord]):
    """A trace in the plain format."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, JsonLines(path, PlainRecord))

    def _request(self, record: PlainRecord, number: int) -> TraceRequest:  # noqa: ARG002
        return TraceRequest(
            arrival_s=record.t,
            documents=tuple(TraceDocument(document.id, document.tokens) for document in record.docs),
            question_tokens=record.question_tokens,
            output_tokens=record.output_tokens,
            system_tokens=record.system_tokens,
            system_id=record.system_id,
        )


class _Block(msgspec.Struct, frozen=True):
    id: int
    kind: str
    tokens: Length


class RagPulseRecord(_Timed, frozen=True):
    """A request of RAGPulse: the ids of its prompt's components, and of the retrieved passages, in order."""

    input_len: Length
    output_len: Count
    hash_ids: tuple[int, ...]
    passages: tuple[int, ...]


class RagPulseTrace(TraceFile[RagPulseRecord]):
    """The RAGPulse trace: requests to a university's question answering, with a table of prompt components.

    The documents are the passages in prompt order. The first component of kind ``sys_prompt`` is the system prompt.
    Everything else counts as question, wherever it is: further ``sys_prompt`` parts, most of which differ between
    requests, history, web search, the user's input and the template's tokens. All of it belongs to one request, and
    RAGTree's prompts put that behind the documents. Requests without passages are kept. The table of components is kept
    in memory.
    """

    def __init__(self, name: str, requests: Path, blocks: Path) -> None:
        super().__init__(name, JsonLines(requests, RagPulseRecord))
        self._table = JsonLines(blocks, _Block)

    @cached_property
    def _blocks(self) -> dict[int, tuple[bool, TraceDocument]]:
        """For each component, whether it is part of a system prompt, and its id and tokens."""
        return {
            block.id: (block.kind == "sys_prompt", TraceDocument(_name(block.id), block.tokens))
            for _, block in self._table
        }

    def _request(self, record: RagPulseRecord, number: int) -> TraceRequest:
        blocks = self._blocks
        unknown = [id_ for id_ in (*record.hash_ids, *record.passages) if id_ not in blocks]
        if unknown:
            raise self._lines.fault(number, f"component {unknown[0]} is not in {self._table.path.name}")
        first_parts = (blocks[id_][1] for id_ in record.hash_ids if blocks[id_][0])
        system = next(first_parts, TraceDocument("", 0))
        documents = tuple(blocks[id_][1] for id_ in record.passages)
        rest = record.input_len - system.tokens - sum(document.tokens for document in documents)
        if rest < 0:
            raise self._lines.fault(number, f"input_len is {-rest} less than system prompt and passages have")
        return TraceRequest(record.t, documents, rest, record.output_len, system.tokens, system.id)


class MooncakeRecord(_Timed, frozen=True):
    """A request of Mooncake: the ids of its prompt's blocks. An id stands for the block and all blocks before it."""

    input_len: Length
    output_len: Count
    hash_ids: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]


class MooncakeTrace(TraceFile[MooncakeRecord]):
    """The Mooncake trace. Its blocks of 512 tokens are the documents; a request's last block has the rest.

    If ``input_len`` leaves nothing for the last block, it has 512 tokens too. A request's blocks have rising numbers,
    and ids are padded with zeros, so sorting by id keeps their order.
    """

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, JsonLines(path, MooncakeRecord))

    def _request(self, record: MooncakeRecord, number: int) -> TraceRequest:  # noqa: ARG002
        *whole, last = record.hash_ids
        rest = record.input_len - MOONCAKE_BLOCK_TOKENS * len(whole)
        blocks = [TraceDocument(_name(id_), MOONCAKE_BLOCK_TOKENS) for id_ in whole]
        blocks.append(TraceDocument(_name(last), rest if rest > 0 else MOONCAKE_BLOCK_TOKENS))
        return TraceRequest(record.t, tuple(blocks), 0, record.output_len)


def open_trace(path: Path, name: str) -> Workload:
    """Open the trace in this file, or in this folder's ``requests.jsonl[.gz]``. The first line decides the format.

    RAGPulse has its table of components beside it, in ``blocks.jsonl[.gz]``. Raises ConfigError for an unknown format,
    an empty trace, or a missing file.
    """
    requests = _file(path, "requests") if path.is_dir() else path
    for number, fields in JsonLines(requests, dict[str, msgspec.Raw]):
        if "docs" in fields:
            return PlainTrace(name, requests)
        if "passages" in fields:
            return RagPulseTrace(name, requests, _file(requests.parent, "blocks"))
        if "hash_ids" in fields:
            return MooncakeTrace(name, requests)
        raise ConfigError(
            f"{requests}, line {number}: a trace has docs (plain), passages (RAGPulse) or hash_ids (Mooncake), "
            f"and this has {', '.join(fields) or 'nothing'}"
        )
    raise ConfigError(f"{requests} holds no request")


def _file(folder: Path, stem: str) -> Path:
    for file in (folder / f"{stem}.jsonl.gz", folder / f"{stem}.jsonl"):
        if file.is_file():
            return file
    raise ConfigError(f"there is no {stem}.jsonl or {stem}.jsonl.gz in {folder}")


def _name(number: int) -> str:
    return f"{number:010d}"
