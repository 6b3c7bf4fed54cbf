"""Extraction by rules in its real worker process."""

import os
import signal
import threading
from pathlib import Path

import pytest

from protocol.errors import Unavailable
from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.rules import RulesExtractor, RulesProcess, rules_fingerprint
from retriever.store.incoming import SourceText

SOURCES = [
    SourceText("Warsaw lies on the Vistula. It rained.", "Warsaw"),
    SourceText(""),
    SourceText("\u4f60\u597d. Marie Curie discovered polonium."),
]


@pytest.fixture(scope="module")
def phrases() -> Phrases:
    return Phrases()


@pytest.fixture(scope="module")
def process(phrases):
    """Shared, because a worker starts in seconds. It is closed by the last test."""
    started = RulesProcess(rules_fingerprint(phrases))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_API_KEY", "secret")
        started.extract(SOURCES)
    yield started
    started.close()


def worker_of(process: RulesProcess) -> int:
    assert process._worker is not None
    return process._worker.pid


def test_it_finds_what_the_extractor_finds_in_this_process(process, phrases):
    here = RulesExtractor(phrases)
    assert process.extract(SOURCES) == here.extract(SOURCES)


def test_the_worker_sees_no_variable_of_this_process(process):
    assert b"secret" not in Path(f"/proc/{worker_of(process)}/environ").read_bytes()


def test_one_worker_reads_group_after_group(process):
    process.extract(SOURCES)
    first = worker_of(process)
    assert process.extract([]) == []
    process.extract(SOURCES)
    assert worker_of(process) == first


def test_a_killed_worker_is_unavailable_once_and_replaced(process):
    found = process.extract(SOURCES)
    os.kill(worker_of(process), signal.SIGKILL)
    with pytest.raises(Unavailable, match="has ended"):
        process.extract(SOURCES)
    assert process.extract(SOURCES) == found


def test_the_worker_ends_with_its_parent(process):
    process.extract(SOURCES)
    assert process._worker is not None
    worker = process._worker._process
    assert worker.stdin is not None
    # What the kernel does when the parent is gone.
    worker.stdin.close()
    assert worker.wait(30) == 0
    with pytest.raises(Unavailable, match="has ended"):
        process.extract(SOURCES)


def test_closing_ends_a_group_that_is_being_read(process):
    process.extract(SOURCES)
    pid = worker_of(process)
    raised: list[Unavailable] = []

    def read() -> None:
        try:
            process.extract([SourceText("Marie Curie discovered polonium. " * 20_000)])
        except Unavailable as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    process.close()
    reader.join(30)
    assert not reader.is_alive()
    assert len(raised) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Unavailable, match="closed"):
        process.extract(SOURCES)
