"""
Steps at which the trainer fails for a reason that another start of it would meet again.

    StepFailed(12, "ValueError: ...") ─▶ the trainer starts again, from its checkpoint ─┬─▶ Stepped(12): forgotten
                                                                                       └─▶ the same: the run ends

Remembered by the broker, so it outlives the trainer's process; a run that is resumed begins without it, because its
operator may have mended the cause. A trainer that is killed gives no reason, and is started again as ever.
"""

from asyncrl.broker.failures import cause_key
from asyncrl.errors import RunFailed


class StepFailures:
    """Failures in this life of the broker. Reasons that differ in numbers or quoted values only are the same."""

    def __init__(self) -> None:
        self._causes: dict[int, set[str]] = {}
        """Causes of each step that was not done since."""

    def failed(self, step: int, reason: str) -> None:
        """Note a failure; raises `RunFailed` if the step has failed for this reason before."""
        causes, cause = self._causes.setdefault(step, set()), cause_key("trainer", reason)
        if cause in causes:
            raise RunFailed(
                f"the trainer failed twice at step {step} for the same reason: {' '.join(reason.split())}; mend the "
                f"cause and resume the run, or have it leave out the batch of that step: asyncrl resume RUN "
                f"--skip-step {step}"
            )
        causes.add(cause)

    def done(self, step: int) -> None:
        """Forget the failures of a step that the trainer has done."""
        self._causes.pop(step, None)
