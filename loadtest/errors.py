"""The errors that keep a load test from running."""


class LoadTestError(Exception):
    """The load test cannot run as requested. The message says why."""


class BadOption(LoadTestError):
    """An option, or a file that it names, is invalid."""


class StackNotReady(LoadTestError):
    """No stack answers at the address, or it cannot serve queries."""
