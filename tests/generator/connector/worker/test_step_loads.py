"""Loads within a step: what is held is copied before the engine computes, and let go once it is copied."""

import errno

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from reads import piece_of
from small_cache import small_cache

from generator.connector.step_jobs import Load
from generator.connector.worker.step_loads import StepLoads
from generator.tiers.arena import HostArena
from generator.tiers.arena_file import ByteLocks
from generator.tiers.base import PagesTaken
from protocol.kv import KvNode, Pages, Paging
from protocol.tiers import Tier

PAGE_TOKENS, PAGES = 4, 3
FAST = 1e12
COPIES = {"aa": Pages((0, 1, 2), 1), "bb": Pages((5, 3, 4), 2)}


class Loading:
    """Loads into a small cache, out of an arena with two nodes of three pages each."""

    def __init__(self, folder, bytes_per_s: float = FAST) -> None:
        self.blocks = small_cache(20, PAGE_TOKENS, 8, 4, torch.bfloat16)
        size = self.blocks.page_bytes
        self.arena = HostArena(folder / "kv.arena", "weights", Paging(PAGE_TOKENS), size, 8)
        self.pages = {}
        for prefix, (name, numbers) in enumerate(COPIES.items()):
            self.pages[name] = np.random.default_rng(prefix).integers(0, 256, (PAGES, size), np.uint8)
            self.write(name, prefix, numbers)
        self.step_loads = StepLoads(self.blocks, self.arena, bytes_per_s)

    def write(self, name: str, prefix: int, pages: Pages) -> None:
        tokens = PAGES * PAGE_TOKENS
        with self.arena.writing(KvNode(name, "tenant", (name,), prefix * tokens, tokens), pages) as writer:
            for index, page in enumerate(self.pages[name]):
                writer.page(index)[:] = page

    def is_held(self) -> bool:
        """Whether the first node's pages are held, tried with a writer to the first one."""
        self.pages["cc"] = self.pages["aa"]
        try:
            self.write("cc", 0, COPIES["aa"])
        except PagesTaken:
            return True
        return False

    def page(self, block: int) -> np.ndarray:
        page = np.empty(self.blocks.page_bytes, np.uint8)
        self.blocks.read(block, page, PAGE_TOKENS)
        return page

    def load_of(self, request: str) -> Load:
        """The middle page of the first node, and the first two of the second one."""
        pieces = (
            piece_of("aa", Tier.HOST, 1, (7,), COPIES["aa"]),
            piece_of("bb", Tier.HOST, 0, (4, 9), COPIES["bb"]),
        )
        return Load(request, pieces)


@pytest.fixture
def loading(tmp_path):
    loading = Loading(tmp_path)
    yield loading
    loading.step_loads.close()
    loading.arena.close()


def test_held_pages_are_loaded_and_let_go(loading):
    assert not loading.step_loads.hold("one", COPIES)
    loading.step_loads.keep(["one"])
    assert loading.is_held()
    loading.step_loads.load([loading.load_of("one")])
    assert (loading.page(7) == loading.pages["aa"][1]).all()
    assert (loading.page(4) == loading.pages["bb"][0]).all()
    assert (loading.page(9) == loading.pages["bb"][1]).all()
    assert set(loading.step_loads.take_seconds()) == {"one"}
    assert not loading.step_loads.take_seconds()
    assert not loading.is_held()


def test_what_a_step_does_not_load_is_let_go(loading):
    """vLLM has asked for a request, and has not scheduled it."""
    loading.step_loads.hold("one", COPIES)
    loading.step_loads.keep(["other"])
    assert not loading.is_held()


def test_a_request_that_asks_again_holds_its_copies_once(loading):
    loading.step_loads.hold("one", COPIES)
    assert not loading.step_loads.hold("one", COPIES)
    loading.step_loads.keep(())
    assert not loading.is_held()


def test_nothing_is_held_if_a_copy_is_missing(loading):
    loading.arena.drop("bb", COPIES["bb"])
    assert loading.step_loads.hold("one", COPIES) == ["bb"]
    assert not loading.is_held()


def test_nothing_is_held_if_the_locks_are_refused(loading, monkeypatch):
    monkeypatch.setattr(ByteLocks, "_call", refused)
    assert loading.step_loads.hold("one", COPIES) is None
    monkeypatch.undo()
    assert loading.step_loads.hold("one", COPIES) == []


def refused(*_):
    raise OSError(errno.ENOLCK, "no locks available")


def test_a_gpu_that_still_copies_keeps_the_pages(loading, monkeypatch):
    copied = []
    monkeypatch.setattr(loading.blocks, "join", lambda: lambda: bool(copied))
    loading.step_loads.hold("one", COPIES)
    loading.step_loads.load([loading.load_of("one")])
    loading.step_loads.load([])
    assert loading.step_loads.busy
    assert loading.is_held()
    copied.append(True)
    loading.step_loads.load([])
    assert not loading.step_loads.busy
    assert not loading.is_held()


def test_the_loads_of_a_step_have_a_limit(tmp_path):
    """A step of 50 ms loads seven pages at this rate."""
    size = small_cache(20, PAGE_TOKENS, 8, 4, torch.bfloat16).page_bytes
    loading = Loading(tmp_path, bytes_per_s=7.5 * size / 0.05)
    assert loading.step_loads.has_room(7)
    assert not loading.step_loads.has_room(8)
    loading.step_loads.hold("one", COPIES)
    assert loading.step_loads.has_room(1)
    assert not loading.step_loads.has_room(2)
    loading.step_loads.keep(())
    assert loading.step_loads.has_room(7)
    loading.step_loads.close()
    loading.arena.close()


def test_closing_waits_for_what_is_copied_and_lets_go(loading, monkeypatch):
    finished = []
    monkeypatch.setattr(loading.blocks, "join", lambda: lambda: False)
    monkeypatch.setattr(loading.blocks, "finish", lambda: finished.append(True))
    loading.step_loads.hold("one", COPIES)
    loading.step_loads.load([loading.load_of("one")])
    loading.step_loads.hold("two", COPIES)
    loading.step_loads.close()
    assert finished
    assert not loading.is_held()
