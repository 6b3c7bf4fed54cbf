import pytest
from limits.aio.storage import MemoryStorage
from windows_contract import PERIOD_S, WindowsContract

from gateway.stores.windows import SlidingWindows


class TestWindowsInMemory(WindowsContract):
    @pytest.fixture
    def windows(self) -> SlidingWindows:
        return SlidingWindows(MemoryStorage(), PERIOD_S)
