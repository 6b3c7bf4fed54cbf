"""What keeps a load test from running."""


class LoadTestError(Exception):
    """A load test that cannot run as it was asked for; the message says why."""


class BadOption(LoadTestError):
    """An option, or a file that one names, that makes no sense."""


class StackNotReady(LoadTestError):
    """Nobody answers at the address, or not as a stack does that can serve queries."""
