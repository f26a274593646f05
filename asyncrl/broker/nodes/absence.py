"""Work that waits for a role without a connected node: reported once per episode, so that no run hangs silently."""

from typing import Protocol

from msgspec import Struct

from asyncrl.broker.groups.admission import Window
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.nodes.machines import MachineBook
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.settings import LiveSettings
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import TransferBook
from asyncrl.messages.words import Role

PATIENCE_S = 60.0


class Books(Protocol):
    """The parts of the scheduler in which work may wait."""

    nodes: NodeBook
    settings: LiveSettings
    machines: MachineBook
    transfers: TransferBook
    window: Window
    dispatcher: Dispatcher
    grading: GradeBook
    evaluation: EvaluationBook

    @property
    def is_trained(self) -> bool: ...


class Wait(Struct, frozen=True):
    role: Role
    work: str
    """Work that waits for the role, in words: ``12 trajectories``."""
    there: str = ""
    """Clause about machines of the role that wait for others; empty if there is none."""

    def sentence(self, waited_s: float) -> str:
        if self.there:
            return (
                f"{self.work} have waited for {waited_s:.0f} s, but {self.there}: start the others, or look at their "
                f"logs"
            )
        return (
            f"{self.work} wait, but no {self.role} node has been connected for {waited_s:.0f} s: "
            f"start one, or look at its log if it was started"
        )


class AbsenceBook:
    """Time since which each role has been missing. A wait is reported after ``patience_s``."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Role, float] = {}
        self._reported: set[Role] = set()

    def overdue(self, waits: list[Wait], now_s: float) -> list[tuple[Wait, str]]:
        """Overdue waits not reported yet, with sentences. A role with none of the ``waits`` starts a new episode."""
        roles = {wait.role for wait in waits}
        self._since_s = {role: self._since_s.get(role, now_s) for role in roles}
        self._reported &= roles
        late = [wait for wait in waits if now_s - self._since_s[wait.role] >= self._patience_s]
        fresh = [wait for wait in late if wait.role not in self._reported]
        self._reported.update(wait.role for wait in fresh)
        return [(wait, wait.sentence(now_s - self._since_s[wait.role])) for wait in fresh]


def waits(books: Books) -> list[Wait]:
    """Work of all roles without a connected node."""
    found = []
    if books.nodes.trainer() is None and (work := _trainer_work(books)):
        found.append(Wait("trainer", work, books.machines.missing()))
    if not (books.nodes.with_role("rollout") or books.settings.paused_by) and (work := _rollout_work(books)):
        found.append(Wait("rollout", work))
    if not books.nodes.with_role("spool") and (rollouts := books.nodes.rollouts()):
        found.append(Wait("spool", f"the results of {len(rollouts)} rollouts"))
    if not books.nodes.with_role("reward") and books.grading.waiting:
        found.append(Wait("reward", f"{books.grading.num_waiting} trajectories"))
    return found


def _trainer_work(books: Books) -> str:
    if books.transfers.live_version < 0:
        return f"{len(rollouts)} rollouts without weights" if (rollouts := books.nodes.rollouts()) else ""
    if books.window.num_open:
        return f"{books.window.num_open} groups in the window"
    return "" if books.is_trained else "the steps since the last checkpoint"


def _rollout_work(books: Books) -> str:
    if books.transfers.staged_version > books.transfers.live_version:
        return f"the weights of version {books.transfers.staged_version}"
    if books.dispatcher.unleased:
        return f"{len(books.dispatcher.unleased)} groups"
    return "" if books.evaluation.is_finished else "the prompts of an evaluation"
