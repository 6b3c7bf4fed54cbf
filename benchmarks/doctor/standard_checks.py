"""The checks of `ragtree doctor`, in their order."""

from benchmarks.doctor.checks.bandwidths import Bandwidths
from benchmarks.doctor.checks.caching_engine import CachingEngine
from benchmarks.doctor.checks.composed_reuse import ComposedReuse
from benchmarks.doctor.checks.disk import Disk
from benchmarks.doctor.checks.exact_answers import ExactAnswers
from benchmarks.doctor.checks.failing_load import FailingLoad
from benchmarks.doctor.checks.first_tokens import FirstTokens
from benchmarks.doctor.checks.host_memory import HostMemory
from benchmarks.doctor.checks.host_size import HostSize
from benchmarks.doctor.checks.instructions import Instructions
from benchmarks.doctor.checks.memory import Memory
from benchmarks.doctor.checks.model import Model
from benchmarks.doctor.checks.object_store import ObjectStore
from benchmarks.doctor.checks.other_work import OtherWork
from benchmarks.doctor.checks.plain_engine import PlainEngine
from benchmarks.doctor.checks.preloads import Preloads
from benchmarks.doctor.checks.restart import Restart
from benchmarks.doctor.checks.versions import InstalledPackages, Versions
from benchmarks.doctor.examination import Check
from cachectl.runtime.composing.gate import GateFolder


def standard_checks(gates: GateFolder) -> list[Check]:
    """Return them. Those that start engines follow those that only look."""
    return [
        Versions(InstalledPackages()),
        OtherWork(),
        Instructions(),
        Preloads(),
        HostMemory(),
        Disk(),
        ObjectStore(),
        Model(),
        Memory(),
        PlainEngine(),
        CachingEngine(),
        HostSize(),
        ComposedReuse(gates),
        ExactAnswers(),
        FailingLoad(),
        FirstTokens(),
        Bandwidths(),
        Restart(),
    ]
