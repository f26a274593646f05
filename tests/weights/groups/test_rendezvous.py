"""Members of a transfer group find each other in any order of arrival."""

from asyncrl.weights.groups.rendezvous import Rendezvous


def test_a_late_request_gets_the_value_at_once() -> None:
    rendezvous = Rendezvous()
    assert rendezvous.set("group-1", "address", b"here") == []

    assert rendezvous.get("group-1", "address", "a") == b"here"


def test_an_early_request_is_answered_once_the_key_is_set() -> None:
    rendezvous = Rendezvous()
    assert rendezvous.get("group-1", "address", "a") is None
    assert rendezvous.get("group-1", "address", "b") is None
    assert rendezvous.get("group-2", "address", "c") is None

    assert rendezvous.set("group-1", "address", b"here") == ["a", "b"]
    assert rendezvous.set("group-1", "address", b"moved") == []
    assert rendezvous.get("group-1", "address", "a") == b"moved"


def test_only_the_newest_groups_are_kept() -> None:
    rendezvous = Rendezvous(keep_groups=2)
    for transfer_group in range(3):
        rendezvous.get(f"group-{transfer_group}", "never", "a")
        rendezvous.set(f"group-{transfer_group}", "address", b"here")

    assert rendezvous.get("group-0", "address", "a") is None
    assert rendezvous.get("group-1", "address", "a") == b"here"
    assert rendezvous.set("group-2", "never", b"x") == ["a"]


def test_the_bytes_of_all_groups_are_bounded_and_a_forgotten_group_makes_room() -> None:
    rendezvous = Rendezvous(keep_groups=2, max_bytes=1500)
    rendezvous.set("group-0", "a", bytes(1000))
    assert rendezvous.problem_of("group-0", "b", bytes(500)) == "the values of all groups would have 1902 bytes"
    assert rendezvous.problem_of("group-0", "a", bytes(1100)) == "", "it takes the place of the first"

    rendezvous.set("group-1", "a", b"")
    rendezvous.set("group-2", "a", b"")
    assert rendezvous.problem_of("group-2", "b", bytes(800)) == ""


def test_requests_that_wait_are_bounded() -> None:
    rendezvous = Rendezvous(max_bytes=1000)
    for number in range(100):
        rendezvous.get("group", str(number), "a")

    assert rendezvous.set("group", "4", b"x") == ["a"]
    assert rendezvous.set("group", "5", b"x") == []
