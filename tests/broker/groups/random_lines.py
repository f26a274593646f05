"""
Random lives of the rule for batches alone: groups complete in any order, are dropped and restart, versions are late.

    admit while the window has room ─▶ complete | drop | restart, at random ─▶ form ─▶ publish ─▶ live ─▶ retire

The oldest groups are often slow, which is what an order is for.
"""

from random import Random

from msgspec import Struct

from asyncrl.broker.groups.admission import Window
from asyncrl.broker.groups.batches import BatchBook
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.state import most_versions
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import Prompt


def form(book: BatchBook, step: int) -> list[Group] | None:
    """Form the batch of the next step; None while its groups are not complete."""
    if (groups := book.choose(step)) is not None:
        book.take(step, groups)
    return groups


PROMPT = Prompt(text="?")


class Life(Struct, frozen=True):
    """Largest values of one life, beside their bounds."""

    staleness: int
    staleness_bound: int
    passed: int
    passed_bound: int


class Line:
    """One schedule until its last step. ``admitted`` numbers admissions and restarts in the order of the line."""

    def __init__(self, dice: Random) -> None:
        staleness, publish = dice.choice([0, 0.5, 1, 1.5, 2, 3]), dice.randint(1, 3)
        reach = dice.choice([None, *range(1, 9)])
        self.schedule = Schedule(
            groups_per_step=dice.randint(1, 3),
            staleness=staleness,
            steps_per_publish=publish,
            order="windowed",
            order_window=reach,
        )
        self._dice = dice
        self._patience = dice.random()
        """Share of turns in which one of the oldest groups may complete."""
        self._steps = dice.randint(2, 8)
        self._book = BatchBook(self.schedule.groups_per_step, self.schedule.reach)
        self._window = Window(self.schedule.window)
        self._num_needed = self._steps * self.schedule.groups_per_step
        self._next_id = 0
        self._live_version = 0
        self._published = 0
        self._admitted: dict[int, int] = {}
        self._num_admitted = 0
        self._trained: list[tuple[int, Group]] = []

    def life(self) -> Life:
        """Live to the end; asserts that every group is trained or dropped, and nothing stands still."""
        while self._book.next_step < self._steps:
            self._admit()
            if self._train():
                continue
            open_groups = [group for group in self._book if not group.is_complete]
            may_be_late = self._live_version < self._published
            if may_be_late and (not open_groups or self._dice.random() < 0.2):
                self._go_live()
            elif open_groups:
                self._happen(open_groups)
            else:
                raise AssertionError(f"all groups are complete, and step {self._book.next_step} takes none of them")
        assert not list(self._book), "every group that was admitted was trained or dropped"
        bound = most_versions(self.schedule)
        assert bound is not None
        return Life(self._staleness(), bound, self._most_passed(), (self.schedule.reach or 1) - 1)

    def _admit(self) -> None:
        while self._window.room and self._num_needed:
            group = Group(self._next_id, PROMPT, 1, min_version=self._live_version)
            self._next_id += 1
            self._num_needed -= 1
            self._window.admit(group.group_id)
            self._line_up(group)

    def _line_up(self, group: Group) -> None:
        self._admitted[group.group_id] = self._num_admitted
        self._num_admitted += 1
        self._book.admitted(group)

    def _happen(self, open_groups: list[Group]) -> None:
        oldest = len(open_groups) if self._dice.random() < self._patience else -(-len(open_groups) // 2)
        group = self._dice.choice(open_groups[-oldest:])
        match self._dice.random():
            case chance if chance < 0.05:
                self._book.dropped(group)
                self._window.drop(group.group_id)
                self._num_needed += 1
            case chance if chance < 0.1:
                self._book.dropped(group)
                group.restart(self._live_version)
                self._line_up(group)
            case _:
                group.num_scored = 1
                self._book.completed(group)

    def _train(self) -> bool:
        step = self._book.next_step
        groups = form(self._book, step) or []
        if groups:
            self._window.consume(step, [group.group_id for group in groups])
            self._trained += [(step, group) for group in groups]
            self._published = (step + 1) // self.schedule.steps_per_publish
        return bool(groups)

    def _go_live(self) -> None:
        self._live_version += 1
        self._window.live(self._live_version * self.schedule.steps_per_publish)

    def _staleness(self) -> int:
        return max(step // self.schedule.steps_per_publish - group.min_version for step, group in self._trained)

    def _most_passed(self) -> int:
        """Most groups admitted after one group and trained in an earlier step."""
        placed = [(step, self._admitted[group.group_id]) for step, group in self._trained]
        return max(sum(other < step and late > place for other, late in placed) for step, place in placed)


def lives(seeds: range) -> list[Life]:
    return [Line(Random(seed)).life() for seed in seeds]
