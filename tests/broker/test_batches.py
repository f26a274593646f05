"""Which complete groups a step gets, and that it gets the same ones for ever."""

import pytest

from asyncrl.broker.batches import BatchBook
from asyncrl.broker.groups import Group
from asyncrl.messages import Prompt


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
    book = BatchBook(2, "fifo")
    a, b, c, d = opened(book, 4)

    complete(book, b, c, d)
    assert book.form(0) is None

    complete(book, a)
    assert book.form(0) == [a, b]
    assert book.form(1) == [c, d]


def test_completion_takes_the_first_complete_ones() -> None:
    book = BatchBook(2, "completion")
    a, b, c, d = opened(book, 4)

    complete(book, d, b)
    assert book.form(0) == [d, b]
    complete(book, a)
    assert book.form(1) is None
    complete(book, c)
    assert book.form(1) == [a, c]


@pytest.mark.parametrize("order", ["fifo", "completion"])
def test_a_step_that_asks_again_gets_the_same_until_a_checkpoint_contains_it(order: str) -> None:
    book = BatchBook(1, order)
    a, b = opened(book, 2)
    complete(book, a, b)
    assert book.taken(0) is None
    assert book.form(0) == book.taken(0) == [a]
    assert book.form(1) == book.taken(1) == [b]

    assert book.forget(0) == [a]
    assert (book.taken(0), book.taken(1)) == (None, [b])
    assert book.forget(0) == []


def test_only_the_next_step_is_formed() -> None:
    book = BatchBook(1, "fifo")
    complete(book, *opened(book, 2))

    assert book.form(1) is None
    assert book.form(0)
    assert book.form(0) is None, "asking again is answered by taken"


def test_a_group_that_was_waited_for_and_is_dropped_holds_nothing_up() -> None:
    book = BatchBook(2, "fifo")
    a, b, c = opened(book, 3)
    complete(book, a, c)
    assert book.form(0) is None

    book.dropped(b)

    assert book.form(0) == [a, c]


@pytest.mark.parametrize("order", ["fifo", "completion"])
def test_a_dropped_group_is_not_waited_for(order: str) -> None:
    book = BatchBook(1, order)
    a, b = opened(book, 2)
    complete(book, b)

    book.dropped(a)

    assert book.form(0) == [b]
