"""A lease ends by its results, by time, or with its node; its open indices are returned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.groups.group import Group, SlotState
from asyncrl.broker.leases.lease import LeaseBook, OpenLease, WaitingGroups, lease_message, sampling_seed
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.messages.words import Split
from tests.broker.driver import a_config


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


# ── test lease terms ──────────────────────────────────────────────────────────────────────────
# A lease message has everything a rollout needs, with distinct seeds.


def lease_on(split: Split, *, seeded: bool = True, **evaluation: object) -> Lease:
    config = a_config(
        sampling={
            "max_tokens": 9,
            "temperature": 0.7,
            "top_k": 5,
            "replay_mask": True,
            "stop": ["."],
            "seeded": seeded,
        },
        evaluation={"max_tokens": 20} | evaluation,
    )
    group = Group(3, Prompt(text="how many?"), 2, min_version=0, split=split)
    return lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 3, split, [1, 0], now_s=0.0))


def test_training_uses_the_sampling_of_the_run() -> None:
    lease = lease_on("train")

    assert lease.sampling == Sampling(9, 0.7, 1.0, 5, ["."], replay_mask=True)
    assert (lease.group_id, lease.indices, lease.prompt.text) == (3, [0, 1], "how many?")


def test_only_what_is_trained_on_records_experts() -> None:
    config = a_config(rollout={"replay_routes": True})

    def is_recorded(split: Split) -> bool:
        group = Group(3, Prompt(text="how many?"), 2, min_version=0, split=split)
        lease = lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 3, split, [1, 0], now_s=0.0))
        return lease.sampling.replay_routes

    assert is_recorded("train")
    assert not is_recorded("held_out")


def test_an_evaluation_is_greedy_over_everything_and_stops_at_the_same_strings() -> None:
    assert lease_on("held_out").sampling == Sampling(20, 0.0, 1.0, 0, ["."])


def test_an_evaluation_of_several_completions_uses_its_own_sampling() -> None:
    lease = lease_on("held_out", samples=4, temperature=0.6, top_p=0.95, top_k=20)
    assert lease.sampling == Sampling(20, 0.6, 0.95, 20, ["."])


def test_without_seeds_an_evaluation_still_has_its_own() -> None:
    assert lease_on("train", seeded=False).seed is None
    assert lease_on("held_out", seeded=False).seed == lease_on("train").seed == sampling_seed(0, 3, 2)


@given(st.integers(0, 2**20), st.integers(0, 2**20), st.integers(1, 64), st.data())
def test_no_two_trajectories_of_a_split_share_a_seed(run: int, group: int, size: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(0, 2**20).filter(lambda g: g != group))
    mine = {sampling_seed(run, group, size) + i for i in range(size)}
    theirs = {sampling_seed(run, other, size) + i for i in range(size)}

    assert not mine & theirs
    assert all(0 <= seed < 2**63 for seed in mine | theirs)


def test_the_greedy_baseline_is_the_last_of_its_group() -> None:
    config = a_config(algorithm={"advantage": "remax"})
    group = Group(4, Prompt(text="?"), 3, min_version=0, num_greedy=config.greedy_per_group)

    def greedy(*indices: int) -> list[int]:
        return lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 4, "train", list(indices), 0.0)).greedy

    assert greedy(0, 1, 2) == [2]
    assert greedy(1) == []


# ── test waiting ──────────────────────────────────────────────────────────────────────────────
# The oldest group is first, whenever it was queued.


def a_group(group_id: int) -> Group:
    return Group(group_id, Prompt(text="?"), 2, min_version=0)


def lease(group: Group) -> Group:
    for slot in group.slots:
        slot.state = SlotState.LEASED
    return group


def test_lost_trajectories_come_before_fresh_groups_and_the_oldest_first() -> None:
    waiting = WaitingGroups(map(a_group, (5, 6)))
    waiting.add(a_group(3))
    waiting.add(a_group(1))

    order = []
    while group := waiting.first():
        order.append(lease(group).group_id)

    assert order == [1, 3, 5, 6]


def test_a_group_is_there_once_however_often_it_is_added() -> None:
    group = a_group(1)
    waiting = WaitingGroups([group, group])
    waiting.add(group)

    assert len(waiting) == 1
    lease(group)
    assert (waiting.first(), len(waiting)) == (None, 0)


def test_a_group_whose_lost_trajectories_arrived_after_all_is_passed_over() -> None:
    late, fresh = lease(a_group(1)), a_group(2)
    late.slots[0].state = SlotState.MISSING
    waiting = WaitingGroups([late, fresh])

    late.slots[0].state = SlotState.STORED

    assert waiting.first() is fresh


def test_a_discarded_group_is_gone_and_may_come_again() -> None:
    group = a_group(1)
    waiting = WaitingGroups([group])

    waiting.discard(1)
    assert waiting.first() is None
    waiting.add(group)
    waiting.discard(1)
    waiting.add(group)
    assert waiting.first() is group
