"""Fixtures for all tests of selectors."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def single_threaded_torch() -> None:
    """Compute with one thread. On tensors this small, more of them wait for each other, above all on busy cores."""
    torch.set_num_threads(1)
