"""Memory of large arrays goes back to the system. In processes of their own: the threshold is that of a process."""

import subprocess
import sys

import pytest

_KEPT = """
import numpy as np
import psutil

from retriever.machine import return_large_blocks

{prepare}
# By this, glibc raises its own threshold.
np.ones(31 << 20, np.uint8)
before = psutil.Process().memory_info().rss
pairs = [(np.ones(8 << 20, np.uint8), np.ones(100_000, np.uint8)) for _ in range(20)]
pairs = [small for _, small in pairs]
print((psutil.Process().memory_info().rss - before) >> 20)
"""


@pytest.mark.parametrize(("prepare", "returned"), [("return_large_blocks()", True), ("", False)])
def test_the_memory_of_large_arrays_is_returned_between_small_ones(prepare, returned):
    command = [sys.executable, "-c", _KEPT.format(prepare=prepare)]
    kept_mib = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert (kept_mib < 40) is returned
