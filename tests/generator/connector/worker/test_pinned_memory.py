"""Host memory is registered with CUDA as a whole or not at all, and released when the arena closes."""

from types import SimpleNamespace

import numpy as np
import pytest

from generator.connector.blocks import cuda_copies
from generator.connector.blocks.cuda_copies import register
from generator.tiers.arena import HostArena
from protocol.kv import Paging

ROWS, STRIDE = 10, 4096
MEMORY = np.zeros((ROWS, STRIDE), np.uint8)[:, :1000]
BEGIN = MEMORY.ctypes.data


class Runtime:
    """A CUDA runtime that refuses the registration with the number ``refused``, counted from 0."""

    def __init__(self, refused: int = -1) -> None:
        self.registered: dict[int, int] = {}
        self.errors = 0
        self._left = refused

    def cudaHostRegister(self, address: int, size: int, flags: int) -> SimpleNamespace:  # noqa: N802
        assert flags == 0
        self._left -= 1
        if self._left == -1:
            self.errors += 1
            return SimpleNamespace(value=2)
        self.registered[address] = size
        return SimpleNamespace(value=0)

    def cudaHostUnregister(self, address: int) -> SimpleNamespace:  # noqa: N802
        del self.registered[address]
        return SimpleNamespace(value=0)

    def clear(self) -> None:
        self.errors -= 1


@pytest.fixture
def chunks_of_four(monkeypatch):
    monkeypatch.setattr(cuda_copies, "_MOST_BYTES", 4 * STRIDE + 1)


def test_all_rows_are_registered_in_one_piece_with_what_lies_between_them():
    runtime = Runtime()
    unregister = register(runtime, runtime.clear, MEMORY)
    assert runtime.registered == {BEGIN: ROWS * STRIDE}
    unregister()
    unregister()
    assert runtime.registered == {}


@pytest.mark.usefixtures("chunks_of_four")
def test_more_than_a_driver_takes_at_once_is_registered_in_whole_rows():
    runtime = Runtime()
    register(runtime, runtime.clear, MEMORY)
    assert runtime.registered == {
        BEGIN: 4 * STRIDE,
        BEGIN + 4 * STRIDE: 4 * STRIDE,
        BEGIN + 8 * STRIDE: 2 * STRIDE,
    }


@pytest.mark.usefixtures("chunks_of_four")
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_what_cuda_refuses_in_part_is_not_registered_at_all(refused):
    runtime = Runtime(refused)
    unregister = register(runtime, runtime.clear, MEMORY)
    assert runtime.registered == {}
    assert runtime.errors == 0
    unregister()


def test_an_arena_is_pinned_while_it_is_attached(tmp_path):
    runtime = Runtime()
    arena = HostArena(
        tmp_path / "a.kv", "f", Paging(4), 1000, 6, lambda memory: register(runtime, runtime.clear, memory)
    )
    assert list(runtime.registered.values()) == [6 * 4096]
    arena.close()
    arena.close()
    assert runtime.registered == {}
