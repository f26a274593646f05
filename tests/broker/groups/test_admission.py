"""Prompts are admitted in data order, each once, as many as the steps need."""

import pytest

from asyncrl.broker.groups.admission import AdmissionBook, Retirement, Window, mean_correct
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.records import Admitted
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import BrokenInvariant, LedgerError, RunFailed
from asyncrl.messages.trajectory import Prompt
from tests.broker.driver import ROWS, Prompts


@pytest.fixture
def book() -> AdmissionBook:
    return AdmissionBook(Prompts(), group_size=2, num_needed=3)  # type: ignore[arg-type]


def test_ids_are_dense_and_a_dropped_group_is_replaced(book: AdmissionBook) -> None:
    admitted = [book.admit(version) for version in (0, 0, 1)]
    assert [record for _, record in admitted] == [Admitted(0, 0, 0, 0), Admitted(1, 0, 1, 0), Admitted(2, 0, 2, 1)]
    assert [(group.prompt.text, group.min_version, len(group.slots)) for group, _ in admitted] == [
        ("question 0", 0, 2),
        ("question 1", 0, 2),
        ("question 2", 1, 2),
    ]
    assert book.num_needed == 0

    book.dropped()

    assert book.num_needed == 1
    assert book.admit(1)[0].group_id == 3


def test_a_group_admitted_earlier_is_the_same_again_and_the_next_one_follows_it(book: AdmissionBook) -> None:
    group = book.readmit(Admitted(11, 1, 1, 4))

    assert (group.group_id, group.prompt.text, group.min_version) == (11, "question 1", 4)
    assert (book.next_group_id, book.num_needed) == (12, 2)


def test_the_places_of_retired_prompts_are_passed_over_in_later_epochs() -> None:
    retirement = Retirement(0.5, ROWS)
    book = AdmissionBook(Prompts(), group_size=1, num_needed=99, retirement=retirement)  # type: ignore[arg-type]
    for _ in range(ROWS):
        group, _ = book.admit(0)
        if group.row in (0, 1, 5):
            group.slots[0].score(1.0, {})
            retirement.completed(group)

    later = [book.admit(1)[1] for _ in range(ROWS - 3)]

    assert [(record.epoch, record.row) for record in later] == [(1, row) for row in (2, 3, 4, 6, 7, 8, 9)]
    assert [record.group_id for record in later] == [12, 13, 14, 16, 17, 18, 19], "ids are places in the order"
    assert book.num_needed == 99 - ROWS - (ROWS - 3)


def test_a_row_that_moved_is_refused(book: AdmissionBook) -> None:
    with pytest.raises(LedgerError, match=r"group 11 was row 9 of epoch 0 .*, and is row 1 of epoch 1"):
        book.readmit(Admitted(11, 0, 9, 4))


def test_greedy_ones_come_beside_those_to_train_on() -> None:
    group, _ = AdmissionBook(Prompts(), group_size=2, num_needed=1, num_greedy=1).admit(0)  # type: ignore[arg-type]
    assert ([slot.unit.index for slot in group.slots], len(group.sampled)) == ([0, 1, 2], 2)


# ── test retirement ───────────────────────────────────────────────────────────────────────────
# Prompts that the policy has learned are not admitted again.


def a_group(row: int, *correct: float, num_greedy: int = 0) -> Group:
    group = Group(row, Prompt(text="?"), len(correct), min_version=0, num_greedy=num_greedy, row=row)
    for slot, value in zip(group.slots, correct, strict=True):
        slot.score(-1.0, {"correct": value})
    return group


def test_a_prompt_is_retired_when_enough_of_its_group_is_correct() -> None:
    retirement = Retirement(0.75, 3)

    retirement.completed(a_group(0, 1, 1, 1, 0))
    retirement.completed(a_group(1, 1, 1, 0, 0))

    assert (0 in retirement, 1 in retirement) == (True, False)


def test_greedy_trajectories_do_not_count_and_a_verdict_without_correct_counts_by_its_reward() -> None:
    assert mean_correct(a_group(0, 1, 0, 0, num_greedy=1)) == 0.5
    group = a_group(0, 0)
    group.slots[0].score(0.25, {})
    assert mean_correct(group) == 0.25


def test_with_0_no_prompt_is_retired() -> None:
    retirement = Retirement(0.0, 1)
    retirement.completed(a_group(0, 1, 1))
    assert 0 not in retirement
    retirement.require_any()


def test_without_a_prompt_left_the_run_fails_in_one_sentence() -> None:
    retirement = Retirement(0.5, 2)
    retirement.completed(a_group(0, 1))
    retirement.require_any()
    retirement.completed(a_group(1, 1))

    with pytest.raises(RunFailed, match=r"all 2 prompts of data.train are retired: of each, data.retire_at = 0.5 or"):
        retirement.require_any()


def test_news_are_told_once() -> None:
    retirement = Retirement(0.5, 9)
    assert retirement.news() == {}
    retirement.completed(a_group(0, 1))
    retirement.completed(a_group(0, 1))
    retirement.completed(a_group(1, 1))
    assert retirement.news() == {"retired": 2, "prompts": 9}
    assert retirement.news() == {}


# ── test window ───────────────────────────────────────────────────────────────────────────────
# At most floor((1 + S) P T) groups are open, and none retires before the weights it contributed to are live.


@pytest.mark.parametrize(
    ("groups", "publish", "staleness", "size"),
    [
        pytest.param(16, 1, 0.0, 16, id="synchronous: one batch"),
        pytest.param(16, 1, 1.0, 32, id="one step off: two batches"),
        pytest.param(4, 3, 0.5, 18, id="a publish is 12 groups, and half of one more"),
        pytest.param(3, 1, 0.5, 4, id="4.5 groups are 4"),
        pytest.param(10, 1, 0.1, 11, id="11 although 1.1 * 10 is a little less in binary"),
    ],
)
def test_the_window_is_the_floor_of_one_plus_staleness_publishes(
    groups: int, publish: int, staleness: float, size: int
) -> None:
    assert Schedule(groups_per_step=groups, steps_per_publish=publish, staleness=staleness).window == size


def test_admitting_past_the_bound_raises() -> None:
    window = Window(2)
    window.admit(0)
    window.admit(1)

    with pytest.raises(BrokenInvariant, match="group 2 admitted with 2 of 2 groups open"):
        window.admit(2)


def test_a_consumed_group_stays_open_until_its_weights_are_live() -> None:
    window = Window(4)
    for group_id in range(4):
        window.admit(group_id)
    window.consume(0, [0, 1])
    window.consume(1, [2, 3])
    assert window.room == 0
    assert window.consumed == {0: [0, 1], 1: [2, 3]}

    window.live(next_step=1)
    assert window.consumed == {1: [2, 3]}
    assert (window.room, window.num_retired) == (2, 2)

    window.live(next_step=2)
    assert (window.room, window.num_retired) == (4, 4)


def test_a_version_made_of_many_steps_frees_all_of_them() -> None:
    window = Window(3)
    for group_id in range(3):
        window.admit(group_id)
        window.consume(group_id, [group_id])

    window.live(next_step=3)

    assert window.num_open == 0


def test_a_dropped_group_leaves_at_once_and_only_once() -> None:
    window = Window(1)
    window.admit(0)
    window.drop(0)

    window.admit(1)
    assert (window.num_admitted, window.num_open, window.peak) == (2, 1, 1)
    with pytest.raises(BrokenInvariant, match="group 0 retired twice"):
        window.drop(0)


@pytest.mark.parametrize(("step", "group_ids"), [(1, [7]), (0, [1])], ids=["not open", "a step twice"])
def test_what_was_never_opened_and_what_was_consumed_cannot_be_consumed(step: int, group_ids: list[int]) -> None:
    window = Window(2)
    window.admit(0)
    window.admit(1)
    window.consume(0, [0])

    with pytest.raises(BrokenInvariant, match=f"step {step + 1}"):
        window.consume(step, group_ids)


def test_a_window_that_grows_has_room_at_once_and_one_that_shrinks_once_it_has_emptied() -> None:
    window = Window(2)
    for group_id in range(2):
        window.admit(group_id)
    window.resize(3)
    assert window.room == 1
    window.admit(2)
    window.resize(1)
    assert window.room == -2
    with pytest.raises(BrokenInvariant, match="3 of 1 groups open"):
        window.admit(3)
    for group_id in range(3):
        window.drop(group_id)
    assert window.room == 1
