"""Members of a transfer group find each other in any order of arrival."""

from asyncrl.broker.versions.rendezvous import Rendezvous


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
