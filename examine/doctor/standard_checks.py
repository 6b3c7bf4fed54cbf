"""The checks of `ragtree doctor`, in their order."""

from cachectl.runtime.composing import GateFolder
from examine.doctor.checks.bandwidths import Bandwidths
from examine.doctor.checks.caching_engine import CachingEngine
from examine.doctor.checks.composed_reuse import ComposedReuse
from examine.doctor.checks.disk import Disk
from examine.doctor.checks.exact_answers import ExactAnswers
from examine.doctor.checks.failing_load import FailingLoad
from examine.doctor.checks.first_tokens import FirstTokens
from examine.doctor.checks.host_memory import HostMemory
from examine.doctor.checks.host_size import HostSize
from examine.doctor.checks.instructions import Instructions
from examine.doctor.checks.memory import Memory
from examine.doctor.checks.model import Model
from examine.doctor.checks.object_store import ObjectStore
from examine.doctor.checks.other_work import OtherWork
from examine.doctor.checks.plain_engine import PlainEngine
from examine.doctor.checks.preloads import Preloads
from examine.doctor.checks.restart import Restart
from examine.doctor.checks.versions import InstalledPackages, Versions
from examine.doctor.examination import Check


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
