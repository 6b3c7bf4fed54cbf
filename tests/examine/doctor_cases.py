"""A doctor's context over temporary folders, and answers to compare."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examine.doctor.context import Context, Sizes, Surroundings
from examine.doctor.workplace import Workplace
from examine.measuring.engines import Generation
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.generation import PrefillResult, TokenLogprob

SMALL = Sizes(prompts=4, answer_tokens=6, rounds=1, document_tokens=96, memory_gib=0.25, threads=None)


def answer(*tokens: tuple[int, float]) -> Generation:
    """An answer of these tokens with their logprobs."""
    return Generation(1.0, PrefillResult(1, 0, 1.0), "", tuple(TokenLogprob(*token) for token in tokens))


def kv_settings(folder: Path, **kv: Any) -> KvSettings:
    return KvSettings(
        **{"host_dir": folder / "host", "host_gib": 0.25, "disk_gib": 0.25, "disk_dir": folder / "kv"} | kv
    )


@contextmanager
def doctor_context(
    folder: Path, surroundings: Surroundings | None = None, kv: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Context]:
    """The context of a doctor whose places are in ``folder``. ``settings`` are the generator's."""
    (folder / "host").mkdir(exist_ok=True)
    given = GeneratorSettings(kv=kv_settings(folder, **(kv or {})), **settings)
    with Workplace(given.kv) as place:
        yield Context(
            given, ModelStore(folder / "cache"), place, surroundings or Surroundings(), lambda *_: None, SMALL
        )
