"""Work that waits for a role nobody plays: said once per episode, so that nothing waits silently."""

from typing import TYPE_CHECKING

from msgspec import Struct

from asyncrl.messages import Role

if TYPE_CHECKING:
    from asyncrl.broker.scheduler import Scheduler

PATIENCE_S = 60.0


class Wait(Struct, frozen=True):
    """What waits for whom."""

    role: Role
    work: str
    """In words, with a number where there is one."""

    def sentence(self, waited_s: float) -> str:
        """For a person: who is missing, for how long, and what to do."""
        return (
            f"{self.work} wait, but no {self.role} node has been connected for {waited_s:g} s: "
            f"start one, or look at its log if it was started"
        )


class AbsenceBook:
    """Since when each role has been missing."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Role, float] = {}
        self._said: set[Role] = set()

    def overdue(self, waits: list[Wait], now_s: float) -> list[tuple[Wait, str]]:
        """
        Those of ``waits``, all there are now, that have lasted too long and were not said yet, each with its sentence.

        A wait that is not among them is over: the next one of that role is a new episode.
        """
        roles = {wait.role for wait in waits}
        self._since_s = {role: self._since_s.get(role, now_s) for role in roles}
        self._said &= roles
        late = [wait for wait in waits if now_s - self._since_s[wait.role] >= self._patience_s]
        fresh = [wait for wait in late if wait.role not in self._said]
        self._said.update(wait.role for wait in fresh)
        return [(wait, wait.sentence(now_s - self._since_s[wait.role])) for wait in fresh]


def waits(scheduler: "Scheduler") -> list[Wait]:
    """Work nobody is there to do."""
    found = []
    if scheduler.nodes.trainer() is None and (work := _of_a_trainer(scheduler)):
        found.append(Wait("trainer", work))
    if not scheduler.nodes.rollouts() and (work := _of_a_rollout(scheduler)):
        found.append(Wait("rollout", work))
    if not scheduler.nodes.of("reward") and scheduler.grading.is_waiting:
        found.append(Wait("reward", f"{scheduler.grading.num_waiting} trajectories"))
    return found


def _of_a_trainer(scheduler: "Scheduler") -> str:
    """In words; empty if there is none."""
    if scheduler.publishing.live_version < 0:
        return f"{len(rollouts)} rollouts without weights" if (rollouts := scheduler.nodes.rollouts()) else ""
    if scheduler.window.num_open:
        return f"{scheduler.window.num_open} groups in the window"
    return "" if scheduler.is_trained else "the steps since the last checkpoint"


def _of_a_rollout(scheduler: "Scheduler") -> str:
    """In words; empty if there is none."""
    if scheduler.publishing.staged_version > scheduler.publishing.live_version:
        return f"the weights of version {scheduler.publishing.staged_version}"
    if scheduler.leasing.unleased:
        return f"{len(scheduler.leasing.unleased)} groups"
    return "" if scheduler.evaluation.is_finished else "the prompts of an evaluation"
