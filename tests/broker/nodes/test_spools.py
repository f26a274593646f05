"""Every rollout stores with a spool that can be reached, and payloads are waited for while their spool is away."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.messages.spool import SpoolAddress, SpoolRef, SpoolSet

TTL_S = 60.0
NAMES = ("a", "b", "c")


def address(name: str) -> SpoolAddress:
    return SpoolAddress(name, f"tcp://{name}:1")


def ref(name: str) -> SpoolRef:
    return SpoolRef(name, 0, 16, 8, 0)


def with_spools(*names: str) -> SpoolBook:
    book = SpoolBook(TTL_S)
    for name in names:
        book.joined(address(name))
    return book


def own(book: SpoolBook, peer: str) -> str:
    return book.told_to(peer).own


def test_rollouts_are_spread_over_the_spools_and_keep_theirs() -> None:
    book = with_spools("a", "b")
    for peer in "123":
        book.assign(peer)
    placed = [own(book, peer) for peer in "123"]
    assert placed == ["a", "b", "a"]

    book.release("1")
    book.assign("4")
    assert [own(book, peer) for peer in "234"] == ["b", "a", "a"]


def test_a_spool_that_joins_late_takes_rollouts_of_the_others() -> None:
    book = SpoolBook(TTL_S)
    for peer in "1234":
        book.assign(peer)
    assert own(book, "1") == ""
    book.joined(address("a"))
    assert own(book, "1") == "a"
    book.joined(address("b"))
    assert [own(book, peer) for peer in "1234"] == ["a", "a", "b", "b"]


def test_a_spool_is_away_until_it_is_back_or_lost() -> None:
    book = with_spools("a", "b")
    book.assign("1")
    revision = book.revision
    book.departed("a", now_s=10.0)
    assert (book.is_reachable(ref("a")), book.is_reachable(ref("b")), book.are_all_reachable) == (False, True, False)
    assert own(book, "1") == "b"
    assert book.revision > revision

    assert book.overdue(10.0 + TTL_S - 1) == []
    assert book.joined(address("a"))
    assert book.are_all_reachable

    book.departed("a", now_s=100.0)
    book.extend(5.0)
    assert book.overdue(100.0 + TTL_S) == []
    revision = book.revision
    assert book.overdue(105.0 + TTL_S) == ["a"]
    assert book.overdue(200.0 + TTL_S) == []
    assert book.revision > revision
    assert book.told_to("1") == SpoolSet([address("b")], "b", ["a"])
    assert not book.is_reachable(ref("a"))
    assert book.joined(address("a"))
    assert book.told_to("1").lost == []


def test_a_spool_of_an_earlier_life_is_awaited_from_the_first_look() -> None:
    book = SpoolBook(TTL_S)
    book.expect({"a", "b"})
    assert book.overdue(1000.0) == []
    assert book.joined(address("b"))
    assert book.overdue(1000.0 + TTL_S) == ["a"]


def test_a_spool_that_nobody_named_is_not_away() -> None:
    assert SpoolBook(TTL_S).is_reachable(ref("a"))


@example([("joins", "a"), *[("rollout", "a")] * 11, ("joins", "b"), ("rollout", "a"), ("joins", "c")])
@given(st.lists(st.tuples(st.sampled_from(["joins", "leaves", "rollout"]), st.sampled_from(NAMES)), max_size=40))
def test_no_rollout_stores_with_a_spool_that_is_away_and_the_numbers_are_even(steps: list[tuple[str, str]]) -> None:
    book, here, peers = SpoolBook(TTL_S), set[str](), list[str]()
    for what, name in steps:
        if what == "joins":
            book.joined(address(name))
            here.add(name)
        elif what == "leaves":
            book.departed(name, 0.0)
            here.discard(name)
        else:
            peers.append(f"r{len(peers)}")
            book.assign(peers[-1])
        used = Counter(own(book, peer) for peer in peers)
        assert set(used) <= (here or {""})
        numbers = [used[name] for name in here]
        assert not numbers or max(numbers) - min(numbers) <= 1


def test_a_spool_that_is_barred_serves_what_it_has_and_takes_nothing_new_while_there_is_another() -> None:
    book = with_spools("a", "b")
    for peer in "12":
        book.assign(peer)
    book.bar("a")
    assert [own(book, peer) for peer in "12"] == ["b", "b"]
    assert {spool.name for spool in book.told_to("1").spools} == {"a", "b"}
    assert book.is_reachable(ref("a"))
    book.departed("b", 0.0)
    assert [own(book, peer) for peer in "12"] == ["a", "a"], "better than none"

    book.joined(address("b"))
    book.admit("a")
    assert sorted(own(book, peer) for peer in "12") == ["a", "b"]
