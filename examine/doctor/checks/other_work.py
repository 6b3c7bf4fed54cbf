"""What else uses the machine."""

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome


class OtherWork:
    """Reports a running stack and other busy processes. Beside them the other checks use little."""

    name = "other work"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Warns that times say little on a busy machine."""
        surroundings, sizes = context.surroundings, context.sizes
        busy = f"{surroundings.busy_share:.0%} of the CPUs are busy"
        if not surroundings.crowded:
            return Outcome.passed(busy)
        less = f"{sizes.prompts} prompts, {sizes.memory_gib:g} GiB, one thread"
        if surroundings.stack_url is not None:
            return Outcome.warning(
                f"a stack runs at {surroundings.stack_url}, so this doctor uses little and its times say little: "
                "stop the stack for a full examination",
                f"{busy}; {less}",
            )
        return Outcome.warning(
            "other processes use the machine, so this doctor uses little and its times say little: stop them for a "
            "full examination",
            f"{busy}; {less}",
        )
