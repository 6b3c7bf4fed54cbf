"""Limits that the kernel enforces on a worker process. The process sets them itself, before it reads foreign input."""

import resource


def confine(memory_bytes: int) -> None:
    """Limit the address space of this process, and let it write no file and no core.

    At the limit it gets a MemoryError, or whatever native code makes of a failed allocation.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_processor_time(seconds: int) -> None:
    """Let this process compute for so many seconds more, on all its threads together. Then SIGXCPU ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
