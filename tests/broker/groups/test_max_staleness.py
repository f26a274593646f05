"""Arithmetic of ``max_staleness``; taking the due groups suffices."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.max_staleness import StalenessBound, Stragglers
from asyncrl.messages.trajectory import Prompt


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
