"""The process that tries schemas of unknown origin. xgrammar itself has no bounds, and can overflow its stack.

It reads one schema after another from standard input, and tries each in a child, which the kernel ends at a limit. A
child is a copy of this process: it has xgrammar and the engine's vocabulary in memory already, and takes nothing with
it when it crashes.
"""

import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from generator.grammars.messages import Limits, Request, Verdict, Vocabulary
from subprocesses.worker_process import confine, give_way, limit_processor_time, read_frame, write_frame

if TYPE_CHECKING:
    from generator.grammars.trial import Trial

_MIB = 1024 * 1024
_FIRST_VICTIM = "1000"


def main() -> None:
    """Try schemas until standard input closes."""
    # A child has only the thread that forked it. Libraries that start threads when they are loaded would miss theirs.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    try:
        vocabulary = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=Vocabulary)
        from generator.grammars.trial import Trial

        trial = Trial(vocabulary)
        write_frame(sys.stdout.buffer, Verdict())
        while True:
            request = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=Request)
            write_frame(sys.stdout.buffer, _try(trial, request.schema, request.limits))
    except EOFError:
        return


def _try(trial: "Trial", schema: str, limits: Limits) -> Verdict:
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        _try_here(trial, schema, limits, writable)
    os.close(writable)
    with open(readable, "rb") as answers:  # noqa: PTH123  # a descriptor has no path
        answer = answers.read()
    _, status, used = os.wait4(child, 0)
    cpu_s = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        return Verdict(_overrun(os.WTERMSIG(status), limits), cpu_s)
    if status or not answer:
        return Verdict("compiling it fails", cpu_s)
    return msgspec.structs.replace(msgspec.msgpack.decode(answer, type=Verdict), cpu_s=cpu_s)


def _try_here(trial: "Trial", schema: str, limits: Limits, answers: int) -> NoReturn:
    """The child's part. It never returns into the parent's code."""
    from generator.grammars.trial import SchemaRefused

    failed = 1
    try:
        _confine_child(limits)
        try:
            verdict = Verdict(compiled_bytes=trial.run(schema, limits.mask_s))
        except SchemaRefused as refused:
            verdict = Verdict(str(refused))
        except MemoryError:
            verdict = Verdict(_too_large(limits))
        os.write(answers, msgspec.msgpack.encode(verdict))
        failed = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(failed)


def _confine_child(limits: Limits) -> None:
    give_way()
    confine(_mapped_bytes() + limits.memory_bytes)
    limit_processor_time(limits.cpu_s)
    resource.setrlimit(resource.RLIMIT_STACK, (limits.stack_bytes, limits.stack_bytes))
    # SIGALRM ends the child even while it waits.
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    # If the machine runs out of memory, the kernel looks here first.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _overrun(number: int, limits: Limits) -> str:
    """What a child has exceeded that a signal has ended."""
    match number:
        case signal.SIGXCPU:
            return f"compiling it takes more than {limits.cpu_s} s of processor time"
        case signal.SIGALRM:
            return f"compiling it takes more than {limits.wall_s} s"
        case signal.SIGSEGV | signal.SIGBUS:
            return "it nests too deeply"
        case signal.SIGABRT | signal.SIGKILL:
            return _too_large(limits)
        case _:
            return "compiling it fails"


def _too_large(limits: Limits) -> str:
    return f"compiling it takes more than {limits.memory_bytes // _MIB} MiB of memory"


if __name__ == "__main__":
    main()
