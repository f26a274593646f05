"""
``schedule.staleness = "auto"``: when the broker asks for another staleness, and what it does with the answer.

    enough steps under one schedule ─▶ is_due ─▶ a plan fitted to the run, elsewhere ─▶ StalenessChoice ─▶ live setting
"""

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.sections.schedule import Schedule

KEY = "schedule.staleness"
BY = "auto"
"""Name under which the broker sets the staleness, where an operator's name would stand."""
FEWEST_STEPS = 8


class StalenessChoice(Struct, frozen=True):
    """Answer of a plan that was fitted to the run."""

    staleness: float
    before: float
    reason: str
    """Prediction, or why nothing is changed, in a sentence."""
    predicted_s: dict[str, float] = {}
    """Seconds of a step with each staleness that was tried."""


def steps_between(schedule: Schedule) -> int:
    """Steps between two questions: after a `transition`, at least two versions are measured."""
    return max(FEWEST_STEPS, transition(schedule) + 2 * schedule.steps_per_publish)


def transition(schedule: Schedule) -> int:
    """
    Steps after a change that say nothing of the new schedule's pace: they train the groups of two windows.

    The first groups were admitted under the schedule before, the next ones while its window was drained or filled.
    """
    return -(-2 * schedule.window // schedule.groups_per_step)


class StalenessControl:
    """Counts steps since the broker began, or since the last answer."""

    def __init__(self, next_step: int) -> None:
        self._answered_at = next_step

    def is_due(self, config: Config, next_step: int) -> bool:
        """True if enough steps were measured for another plan, and enough are left to gain by it."""
        every = steps_between(config.schedule)
        return next_step - self._answered_at >= every and config.run.steps - next_step >= every

    def answered(self, next_step: int) -> None:
        """The plan was fitted, or failed; meanwhile the run went on."""
        self._answered_at = next_step
