"""A lease ends by its results, by time, or with its node; its open indices are returned."""

import pytest

from asyncrl.broker.leases.lease import LeaseBook, OpenLease


@pytest.fixture
def book() -> LeaseBook:
    return LeaseBook(broker_term=1, lease_s=10.0)


def ids(leases: list[OpenLease]) -> list[int]:
    return [lease.lease_id for lease in leases]


def test_lease_ids_of_a_later_broker_are_higher_than_all_earlier_ones() -> None:
    first = LeaseBook(1, 10.0)
    last = max(first.next_id() for _ in range(1000))

    assert LeaseBook(2, 10.0).next_id() > last


def test_no_two_leases_share_an_id(book: LeaseBook) -> None:
    assert (
        book.grant("a", 0, "train", [0], 0.0).lease_id < book.next_id() < book.grant("a", 0, "train", [1], 0.0).lease_id
    )


def test_a_lease_is_overdue_exactly_when_its_time_is_up(book: LeaseBook) -> None:
    lease = book.grant("a", 0, "train", [0, 1], now_s=5.0)

    assert book.expire(14.9) == []
    assert book.expire(15.0) == [lease]
    assert book.expire(15.0) == []


def test_beats_extend_the_leases_of_their_node_only(book: LeaseBook) -> None:
    book.grant("a", 0, "train", [0], now_s=0.0)
    quiet = book.grant("b", 1, "train", [0], now_s=0.0)

    book.renew("a", now_s=8.0)
    book.renew("nobody", now_s=8.0)

    assert book.expire(10.0) == [quiet]
    assert len(book.expire(18.0)) == 1


def test_each_index_settles_on_its_own_and_the_last_one_ends_the_lease(book: LeaseBook) -> None:
    lease = book.grant("a", 0, "train", [0, 1], 0.0)

    book.settle(lease.lease_id, 1)
    assert lease.open == (0,)
    book.settle(lease.lease_id, 0)
    book.settle(lease.lease_id, 0)
    assert (len(book), book.revoke("a")) == (0, [])


def test_a_lost_node_gives_back_what_it_had_not_settled(book: LeaseBook) -> None:
    first = book.grant("a", 0, "train", [0, 1], 0.0)
    book.grant("b", 1, "train", [0], 0.0)
    second = book.grant("a", 2, "train", [0], 0.0)
    book.settle(first.lease_id, 0)

    assert [(lease.lease_id, lease.open) for lease in book.revoke("a")] == [
        (first.lease_id, (1,)),
        (second.lease_id, (0,)),
    ]
    assert len(book) == 1


def test_cancelling_a_group_spares_the_same_number_of_the_other_split(book: LeaseBook) -> None:
    train = book.grant("a", 3, "train", [0], 0.0)
    held_out = book.grant("a", 3, "held_out", [0], 0.0)

    assert ids(book.cancel(3, "train")) == [train.lease_id]
    assert ids(book.revoke("a")) == [held_out.lease_id]


def test_cancelling_a_group_takes_all_that_is_left_of_it_in_the_order_granted(book: LeaseBook) -> None:
    lost, first, second = (book.grant(node, 3, "train", [index], 0.0) for node, index in (("a", 0), ("b", 1), ("c", 2)))
    book.grant("b", 4, "train", [0], 0.0)
    book.revoke("a")

    assert ids(book.cancel(3, "train")) == [first.lease_id, second.lease_id]
    assert lost.lease_id not in ids(book.cancel(3, "train"))
    assert len(book) == 1


def test_lease_ids_of_an_earlier_broker_are_recognized() -> None:
    earlier, book = LeaseBook(broker_term=2, lease_s=10.0), LeaseBook(broker_term=3, lease_s=10.0)

    assert book.is_current_term(book.next_id())
    assert not book.is_current_term(earlier.next_id())
