"""Starts stacks: for the session, shared by the tests of a folder, or for one module.

A module that kills or stops a whole stack, or needs other settings, starts its own.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from stacks import StackUnderTest

_LOGGED_LINES = 80


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the end of the stacks' logs to a failure: what a stack did is nowhere else once it has stopped."""
    report = yield
    if report.failed:
        given = [one for value in item.funcargs.values() for one in (value if isinstance(value, tuple) else (value,))]
        for stack in (one for one in given if isinstance(one, StackUnderTest)):
            report.sections.append(("the end of the stack's log", stack.log(_LOGGED_LINES)))
    return report


@contextmanager
def starting(tmp_path_factory):
    """Yield a function that starts a stack. At the end, stop those that still run."""
    started: list[StackUnderTest] = []

    def start(environment, name):
        stack = StackUnderTest(tmp_path_factory.mktemp(name), environment)
        started.append(stack)
        stack.start()
        return stack

    yield start
    with ThreadPoolExecutor() as stopping:
        list(stopping.map(StackUnderTest.stop, started))


@pytest.fixture(scope="session")
def start_shared_stack(tmp_path_factory):
    """A function that starts a stack for the whole session."""
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_stack(tmp_path_factory):
    """A function that starts a stack for one module. An idle stack would slow down the other modules' tests."""
    with starting(tmp_path_factory) as start:
        yield start
