"""Work that waits for a role nobody plays: said once per episode, so that nothing waits silently."""

from typing import Protocol

from msgspec import Struct

from asyncrl.broker.groups.window import Window
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import TransferBook
from asyncrl.messages import Role

PATIENCE_S = 60.0


class Books(Protocol):
    """Where work may wait, and who is there to do it: what the scheduler keeps."""

    nodes: NodeBook
    transfers: TransferBook
    window: Window
    dispatcher: Dispatcher
    grading: GradeBook
    evaluation: EvaluationBook

    @property
    def is_trained(self) -> bool:
        """Every step is in a checkpoint, and the last version is live."""


class Wait(Struct, frozen=True):
    """What waits for whom."""

    role: Role
    work: str
    """In words, with a number where there is one."""

    def sentence(self, waited_s: float) -> str:
        """For a person: who is missing, for how long, and what to do."""
        return (
            f"{self.work} wait, but no {self.role} node has been connected for {waited_s:.0f} s: "
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


def waits(books: Books) -> list[Wait]:
    """Work nobody is there to do."""
    found = []
    if books.nodes.trainer() is None and (work := _of_a_trainer(books)):
        found.append(Wait("trainer", work))
    if not books.nodes.of("rollout") and (work := _of_a_rollout(books)):
        found.append(Wait("rollout", work))
    if not books.nodes.of("reward") and books.grading.is_waiting:
        found.append(Wait("reward", f"{books.grading.num_waiting} trajectories"))
    return found


def _of_a_trainer(books: Books) -> str:
    """In words; empty if there is none."""
    if books.transfers.live_version < 0:
        return f"{len(rollouts)} rollouts without weights" if (rollouts := books.nodes.rollouts()) else ""
    if books.window.num_open:
        return f"{books.window.num_open} groups in the window"
    return "" if books.is_trained else "the steps since the last checkpoint"


def _of_a_rollout(books: Books) -> str:
    """In words; empty if there is none."""
    if books.transfers.staged_version > books.transfers.live_version:
        return f"the weights of version {books.transfers.staged_version}"
    if books.dispatcher.unleased:
        return f"{len(books.dispatcher.unleased)} groups"
    return "" if books.evaluation.is_finished else "the prompts of an evaluation"
