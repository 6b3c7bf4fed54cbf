"""Starts stacks for one module. Folders named ``shared_`` have one for all of their tests.

A module that kills or stops a whole stack, or needs other settings, starts its own.
"""

import pytest
from stacks import StackUnderTest, starting

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


@pytest.fixture(scope="module")
def start_stack(tmp_path_factory):
    """A function that starts a stack for one module. An idle stack would slow down the other modules' tests."""
    with starting(tmp_path_factory) as start:
        yield start
