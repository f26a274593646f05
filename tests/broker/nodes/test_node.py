"""Connected nodes, their order, credits and silence."""

import pytest

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.messages.session import Beat, Hello, Ready
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role


def hello(role: Role, name: str, incarnation: str = "0") -> Hello:
    return Hello(PROTOCOL, role, name, incarnation)


def join(book: NodeBook, role: Role, name: str, incarnation: str = "0", now_s: float = 0.0) -> Node:
    return book.join(f"{name}.{incarnation}", hello(role, name, incarnation), now_s)


def test_any_message_is_a_sign_of_life() -> None:
    book = NodeBook()
    join(book, "rollout", "a")
    silent = join(book, "rollout", "b")

    book.heard("a.0", 5.0)

    assert book.silent(10.0) == []
    assert book.silent(10.1) == [silent]
    assert book.heard("nobody.0", 5.0) is None


def test_a_node_falls_quiet_once_and_gets_no_work_until_it_is_heard() -> None:
    book = NodeBook()
    node = join(book, "reward", "r")
    node.credit_limit = 4

    assert book.falling_quiet(2.0) == []
    assert (book.falling_quiet(2.1), book.falling_quiet(2.2)) == ([node], [])
    assert not node.is_able


def test_a_node_that_beats_without_progress_is_stalled_once_and_gets_no_work_until_it_makes_some() -> None:
    book = NodeBook()
    node = join(book, "rollout", "a")
    node.credit_limit, node.policy_version = 4, 0
    node.beats(Beat(doing="sampling", progress=7), 1.0)

    assert book.stalling(20.9) == []
    assert (book.stalling(21.0), book.stalling(22.0)) == ([node], [])
    assert not node.is_able
    node.beats(Beat(doing="sampling", progress=8), 23.0)
    assert (book.stalling(23.0), node.is_able) == ([node], True)


def test_roles_are_kept_in_the_order_of_joining() -> None:
    book = NodeBook()
    first, judge, second = join(book, "rollout", "b"), join(book, "reward", "r"), join(book, "rollout", "a")

    assert book.with_role("rollout") == [first, second]
    assert book.all() == [first, judge, second]
    assert book.trainer() is None
    book.leave("b.0")
    assert book.with_role("rollout") == [second]
    assert book.leave("b.0") is None


def test_a_machine_joins_as_one_and_may_become_the_trainer() -> None:
    book = NodeBook()
    first, second = (book.join(f"{name}.0", hello("trainer", name), 0.0, "machine") for name in "ab")
    assert (book.trainer(), book.with_role("machine")) == (None, [first, second])

    book.promote(second)
    assert (book.trainer(), book.with_role("machine")) == (second, [first])
    book.leave("b.0")
    assert book.trainer() is None


def test_only_rollouts_whose_model_is_loaded_take_part_in_transfers() -> None:
    book = NodeBook()
    loading, ready = join(book, "rollout", "a"), join(book, "rollout", "b")
    ready.is_ready = True

    assert book.rollouts() == [ready]
    assert loading in book.with_role("rollout")


def test_a_node_that_says_hello_again_is_found_by_its_name() -> None:
    book = NodeBook()
    old = join(book, "rollout", "a", "0")
    join(book, "rollout", "b", "0")

    assert book.named("a") == [old]


def test_several_starts_of_a_node_are_all_found_until_they_leave() -> None:
    book = NodeBook()
    first, second = join(book, "rollout", "a", "0"), join(book, "rollout", "a", "1")
    assert book.named("a") == [first, second]

    book.leave("a.0")
    assert book.named("a") == [second]
    book.leave("a.1")
    assert book.named("a") == []


def test_credits_are_what_was_offered_less_what_was_given_and_a_draining_node_has_none() -> None:
    node = join(NodeBook(), "rollout", "a")
    node.credit_limit, node.granted = 10, 4
    assert (node.credits, node.is_able) == (6, False), "no weights, no work"

    node.policy_version = 0
    assert node.is_able
    node.is_draining = True
    assert (node.credits, node.is_able) == (0, False)


def test_rollouts_that_fetch_weights_are_no_members_of_transfers_and_loading_ones_are_neither() -> None:
    book = NodeBook()
    near, far, _loading = (join(book, "rollout", name) for name in ("near", "far", "new"))
    book.ready(near, Ready(ranks=2))
    book.ready(far, Ready(weights="spool"))

    assert (book.rollouts(), book.members(), book.fetchers()) == ([near, far], [near], [far])
    assert near.ranks == 2
    book.leave(far.peer)
    assert book.fetchers() == []


def test_a_trainer_that_is_ready_is_no_rollout() -> None:
    book = NodeBook()
    book.ready(join(book, "trainer", "t"), Ready(weights="spool"))
    assert book.fetchers() == []


def test_the_rate_of_tokens_follows_the_beats_and_a_new_start_of_the_count_is_left_out() -> None:
    node = join(NodeBook(), "rollout", "a")
    node.beats(Beat(tokens=1000), 10.0)
    assert node.tokens_per_s == 0.0
    for second in range(1, 101):
        node.beats(Beat(tokens=1000 + 50 * second), 10.0 + second)
    assert node.tokens_per_s == pytest.approx(50.0, rel=1e-3)

    before = node.tokens_per_s
    node.beats(Beat(tokens=3), 111.0)
    assert (node.tokens_per_s, node.beat.tokens) == (before, 3)


def test_nobody_waits_for_a_node_that_kept_overdue_work_until_it_offers_room() -> None:
    book = NodeBook()
    join(book, "reward", "a")
    keeper = join(book, "reward", "b")
    keeper.credit_limit = keeper.granted = 2
    assert book.has_other("reward", ["a"]), "it may soon be done with what it has"

    keeper.overdue_limit = keeper.credit_limit
    assert not book.has_other("reward", ["a"])
    assert book.to_avoid("reward", ["a"]) == ()

    keeper.credit_limit += 1
    assert book.has_other("reward", ["a"])
