"""Each step gets the right complete groups, and the same ones when it asks again."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.groups.batches import BatchBook, StalenessBound, Stragglers
from asyncrl.broker.groups.group import Group
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.trajectory import Prompt
from tests.broker.groups.random_lines import form, lives

FIFO, COMPLETION = 1, None
"""Reach of these orders."""


def opened(book: BatchBook, count: int) -> list[Group]:
    groups = [Group(group_id, Prompt(text="?"), 1, min_version=0) for group_id in range(count)]
    for group in groups:
        book.admitted(group)
    return groups


def complete(book: BatchBook, *groups: Group) -> None:
    for group in groups:
        group.num_scored = 1
        book.completed(group)


def test_fifo_waits_for_the_oldest_although_younger_ones_are_complete() -> None:
    book = BatchBook(2, FIFO)
    a, b, c, d = opened(book, 4)

    complete(book, b, c, d)
    assert form(book, 0) is None

    complete(book, a)
    assert form(book, 0) == [a, b]
    assert form(book, 1) == [c, d]


def test_a_slow_group_is_passed_by_at_most_one_group_less_than_the_reach() -> None:
    book = BatchBook(1, 3)
    slow, b, c, d, e = opened(book, 5)
    complete(book, e, d, c, b)

    assert (form(book, 0), form(book, 1)) == ([b], [c]), "the oldest within reach, not the first complete"
    assert form(book, 2) is None, "d is within reach once the slow group is gone"
    complete(book, slow)
    assert [form(book, step) for step in (2, 3, 4)] == [[slow], [d], [e]]


def test_the_reach_moves_with_the_first_group_within_one_batch() -> None:
    book = BatchBook(4, 2)
    a, b, _, d, e = opened(book, 5)
    complete(book, a, b, d)
    assert form(book, 0) is None, "a, b and d are within reach, and e is not"
    complete(book, e)
    assert form(book, 0) is None

    book = BatchBook(3, 2)
    a, b, slow, d = opened(book, 4)
    complete(book, a, b, d)
    assert form(book, 0) == [a, b, d]
    assert list(book) == [slow]


def test_a_dropped_group_does_not_count_as_one_that_passed() -> None:
    book = BatchBook(1, 3)
    _, b, c, d = opened(book, 4)
    complete(book, d)
    assert form(book, 0) is None

    book.dropped(b)

    assert form(book, 0) == [d]
    complete(book, c)
    assert form(book, 1) == [c], "the second of the two that may pass, d being the first"


def test_a_dropped_first_group_takes_the_empty_slots_behind_it_along() -> None:
    book = BatchBook(1, 2)
    a, b, c, d = opened(book, 4)
    complete(book, b, d)
    assert form(book, 0) == [b]
    assert form(book, 1) is None

    book.dropped(a)

    assert form(book, 1) == [d], "c is the first group now"
    assert list(book) == [c]


def test_completion_takes_the_first_complete_ones() -> None:
    book = BatchBook(2, COMPLETION)
    a, b, c, d = opened(book, 4)

    complete(book, d, b)
    assert form(book, 0) == [d, b]
    complete(book, a)
    assert form(book, 1) is None
    complete(book, c)
    assert form(book, 1) == [a, c]


@pytest.mark.parametrize("reach", [FIFO, 2, COMPLETION])
def test_a_step_that_asks_again_gets_the_same_until_a_checkpoint_contains_it(reach: int | None) -> None:
    book = BatchBook(1, reach)
    a, b = opened(book, 2)
    complete(book, a, b)
    assert book.taken(0) is None
    assert form(book, 0) == book.taken(0) == [a]
    assert form(book, 1) == book.taken(1) == [b]

    assert book.forget(0) == [a]
    assert (book.taken(0), book.taken(1)) == (None, [b])
    assert book.forget(0) == []


def test_only_the_next_step_is_formed() -> None:
    book = BatchBook(1, FIFO)
    complete(book, *opened(book, 2))

    assert form(book, 1) is None
    assert form(book, 0)
    assert form(book, 0) is None, "asking again is answered by taken"


def test_a_group_that_was_waited_for_and_is_dropped_holds_nothing_up() -> None:
    book = BatchBook(2, FIFO)
    a, b, c = opened(book, 3)
    complete(book, a, c)
    assert form(book, 0) is None

    book.dropped(b)

    assert form(book, 0) == [a, c]


@pytest.mark.parametrize("reach", [FIFO, 2, COMPLETION])
def test_a_dropped_group_is_not_waited_for(reach: int | None) -> None:
    book = BatchBook(1, reach)
    a, b = opened(book, 2)
    complete(book, b)

    book.dropped(a)

    assert form(book, 0) == [b]


def a_bounded(groups_per_step: int, max_staleness: int, *versions: int) -> tuple[BatchBook, list[Group]]:
    """Book with open groups admitted at these versions, with one step per version."""
    book = BatchBook(groups_per_step, COMPLETION, StalenessBound(max_staleness, groups_per_step, 1))
    groups = [Group(i, Prompt(text="?"), 1, min_version=version) for i, version in enumerate(versions)]
    for group in groups:
        book.admitted(group)
    return book, groups


def test_of_equally_old_groups_the_first_complete_ones_go_first() -> None:
    book, (_, b, _, d) = a_bounded(2, 1, 0, 0, 0, 0)
    complete(book, d, b)

    assert form(book, 0) == [d, b]


def test_a_group_is_waited_for_at_the_last_step_that_may_take_it() -> None:
    book, (a, b, c, d) = a_bounded(2, 1, 0, 0, 0, 1)
    complete(book, b, c)
    assert form(book, 0) == [b, c]
    e = Group(4, Prompt(text="?"), 1, min_version=1)
    book.admitted(e)

    complete(book, d, e)
    assert form(book, 1) is None

    complete(book, a)
    assert form(book, 1) == [d, a], "what is due, then the first complete"
    assert form(book, 2) is None
    assert [group.group_id for group in book] == [4]


def test_a_younger_group_that_is_due_too_is_counted_with_the_older_ones() -> None:
    """Three groups of version 1, one of version 0: step 2 takes two, so two go into step 1, the oldest among them."""
    book, (a, b, c, d) = a_bounded(2, 1, 0, 1, 1, 1)
    book.next_step = 1
    complete(book, b, c, d)
    assert form(book, 1) is None

    complete(book, a)

    assert form(book, 1) == [b, a]


def test_a_group_that_is_due_and_dropped_is_not_waited_for() -> None:
    book, (a, b) = a_bounded(1, 0, 0, 1)
    complete(book, b)
    assert form(book, 0) is None

    book.dropped(a)

    assert form(book, 0) == [b]


def test_more_groups_due_than_a_step_takes_is_a_broken_invariant() -> None:
    book, groups = a_bounded(1, 0, 0, 0)
    complete(book, *groups)

    with pytest.raises(BrokenInvariant, match="2 groups are too old for any step after 1"):
        form(book, 0)


@pytest.mark.parametrize("reach", [FIFO, 2, COMPLETION])
def test_a_restarted_group_is_the_youngest_and_incomplete(reach: int | None) -> None:
    book = BatchBook(1, reach)
    a, b = opened(book, 2)
    complete(book, a, b)

    book.dropped(a)
    a.restart(1)
    book.admitted(a)

    assert list(book) == [b, a]
    assert book.complete == [b]
    assert form(book, 0) == [b]
    assert form(book, 1) is None


@pytest.mark.parametrize(
    "seeds",
    [range(5_000), pytest.param(range(5_000, 105_000), marks=pytest.mark.long("a hundred thousand more seeds"))],
    ids=len,
)
def test_in_random_lives_neither_bound_is_broken_and_every_group_is_trained(seeds: range) -> None:
    found = lives(seeds)

    assert all(life.staleness <= life.staleness_bound and life.passed <= life.passed_bound for life in found)
    tight = [life for life in found if (life.staleness, life.passed) == (life.staleness_bound, life.passed_bound)]
    assert len(tight) > len(found) / 100, "no smaller bound holds"


# ── test max staleness ────────────────────────────────────────────────────────────────────────
# Arithmetic of ``max_staleness``; taking the due groups suffices.


def groups(*versions: int) -> list[Group]:
    return [Group(group_id, Prompt(text="?"), 1, min_version=version) for group_id, version in enumerate(versions)]


@pytest.mark.parametrize(
    ("max_staleness", "publish", "version", "last"),
    [(0, 1, 0, 0), (0, 4, 0, 3), (1, 1, 5, 6), (1, 4, 0, 7), (2, 2, 3, 11)],
)
def test_the_last_step_is_the_one_before_the_trainer_is_too_many_versions_ahead(
    max_staleness: int, publish: int, version: int, last: int
) -> None:
    bound = StalenessBound(max_staleness, 16, publish)

    assert bound.last_step(version) == last
    assert last // publish - version == max_staleness
    assert (last + 1) // publish - version == max_staleness + 1
    assert bound.oldest_version(last) == version
    assert bound.oldest_version(last + 1) == version + 1


@pytest.mark.parametrize(
    ("num_open", "step", "due"),
    [
        pytest.param({}, 0, [], id="nothing is open"),
        pytest.param({0: 4}, 0, [(0, 2)], id="four with last step 1: two of them now, two in step 1"),
        pytest.param({0: 2}, 0, [], id="two with last step 1: both can wait for it"),
        pytest.param({0: 2}, 1, [(0, 2)], id="this is their last step"),
        pytest.param({0: 1, 1: 2}, 1, [(0, 1)], id="the younger two fit into step 2, the oldest does not"),
        pytest.param({0: 1, 1: 3}, 1, [(0, 1), (1, 2)], id="two fit into step 2, none of them the oldest"),
        pytest.param({0: 1, 1: 4}, 1, [(0, 1), (1, 3)], id="more than a step takes: no window that fits admits these"),
        pytest.param({1: 2, 2: 1}, 0, [], id="far from due"),
    ],
)
def test_what_is_due_with_two_a_step_and_one_version_of_staleness(
    num_open: dict[int, int], step: int, due: list[tuple[int, int]]
) -> None:
    assert StalenessBound(1, 2, 1).due(num_open, step) == due


class Pool:
    """Versions at which groups were admitted by a window and consumed by steps."""

    def __init__(self, window: int, per_step: int, publish: int, max_staleness: int) -> None:
        self.window, self.per_step, self.publish = window, per_step, publish
        self.bound = StalenessBound(max_staleness, per_step, publish)
        self.open: list[int] = []
        self.unretired: list[int] = []
        self.step = self.version = 0

    def admit(self) -> None:
        room = self.window - len(self.open) - self.per_step * len(self.unretired)
        self.open += [self.version] * room

    def publish_one(self) -> None:
        if (self.version + 1) * self.publish <= self.step:
            self.version += 1
            self.unretired = [step for step in self.unretired if step >= self.version * self.publish]

    def consume(self, dice: Random) -> None:
        """Consume the due groups, and random others."""
        due = self.bound.due(Counter(self.open), self.step)
        assert all(number <= self.per_step for _, number in due), "more are due than a step takes"
        if len(self.open) < self.per_step:
            return
        dice.shuffle(self.open)
        batch: list[int] = []
        for limit, number in [*due, (self.version, self.per_step)]:
            for version in [version for version in self.open if version <= limit][: number - len(batch)]:
                assert self.step <= self.bound.last_step(version), "too old"
                self.open.remove(version)
                batch.append(version)
        self.unretired.append(self.step)
        self.step += 1


@given(
    per_step=st.integers(1, 4),
    publish=st.integers(1, 3),
    max_staleness=st.integers(0, 3),
    spare=st.integers(0, 6),
    seed=st.integers(0, 2**32),
)
def test_in_a_window_that_fits_the_due_groups_always_fit_into_a_step(
    per_step: int, publish: int, max_staleness: int, spare: int, seed: int
) -> None:
    least, most = per_step * publish, (max_staleness + 1) * per_step * publish
    pool, dice = Pool(max(least, most - spare), per_step, publish, max_staleness), Random(seed)
    for _ in range(80):
        dice.choice([pool.admit, pool.publish_one, lambda: pool.consume(dice)])()
    pool.admit()


@given(per_step=st.integers(1, 4), publish=st.integers(1, 3), max_staleness=st.integers(0, 3))
def test_one_group_more_in_the_window_and_they_need_not_fit(per_step: int, publish: int, max_staleness: int) -> None:
    pool = Pool((max_staleness + 1) * per_step * publish + 1, per_step, publish, max_staleness)
    pool.admit()

    assert pool.bound.due(Counter(pool.open), 0) == [(0, per_step + 1)]


# ── stragglers ──────────────────────────────────────────────────────────────────────────────


def test_too_old_are_those_admitted_below_the_oldest_version_that_the_step_may_consume() -> None:
    stragglers = Stragglers(StalenessBound(1, 2, 1))
    a, b, c, d = groups(0, 1, 2, 3)

    assert stragglers.overdue([a, b, c, d], step=3, live_version=3) == [a, b]
    assert stragglers.overdue([c, d], step=4, live_version=4) == [c]


def test_no_group_restarts_with_a_version_that_would_be_too_old_again() -> None:
    stragglers = Stragglers(StalenessBound(0, 2, 1))
    a, b = groups(0, 0)

    assert stragglers.overdue([a, b], step=1, live_version=0) == []
    assert not stragglers.may_form(step=1, live_version=0)
    assert stragglers.overdue([a, b], step=1, live_version=1) == [a, b]
    assert stragglers.may_form(step=1, live_version=1)


def test_groups_are_iterated_over_only_when_some_may_be_too_old() -> None:
    stragglers = Stragglers(StalenessBound(0, 2, 2))
    never: Iterator[Group] = iter([])
    looked = groups(0)

    assert stragglers.overdue(looked, step=1, live_version=0) == []
    assert stragglers.overdue(looked, step=2, live_version=1) == looked
    assert stragglers.overdue(iter(looked), step=2, live_version=1) == [], "they have restarted"
    assert stragglers.overdue(never, step=3, live_version=1) == []
