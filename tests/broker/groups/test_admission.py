"""Prompts are admitted in data order, each once, as many as the steps need."""

import pytest

from asyncrl.broker.groups.admission import AdmissionBook
from asyncrl.broker.groups.retirement import Retirement
from asyncrl.broker.ledger.records import Admitted
from asyncrl.errors import LedgerError
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
