"""Members of a weight group find each other whoever comes first."""

from asyncrl.broker.versions.rendezvous import Rendezvous


def test_who_asks_late_gets_the_value_at_once() -> None:
    rendezvous = Rendezvous()
    assert rendezvous.set("epoch-1", "address", b"here") == []

    assert rendezvous.get("epoch-1", "address", "a") == b"here"


def test_who_asks_early_is_told_when_it_is_set_once() -> None:
    rendezvous = Rendezvous()
    assert rendezvous.get("epoch-1", "address", "a") is None
    assert rendezvous.get("epoch-1", "address", "b") is None
    assert rendezvous.get("epoch-2", "address", "c") is None

    assert rendezvous.set("epoch-1", "address", b"here") == ["a", "b"]
    assert rendezvous.set("epoch-1", "address", b"moved") == []
    assert rendezvous.get("epoch-1", "address", "a") == b"moved"


def test_only_the_newest_groups_are_kept() -> None:
    rendezvous = Rendezvous(keep_groups=2)
    for transfer_group in range(3):
        rendezvous.get(f"epoch-{transfer_group}", "never", "a")
        rendezvous.set(f"epoch-{transfer_group}", "address", b"here")

    assert rendezvous.get("epoch-0", "address", "a") is None
    assert rendezvous.get("epoch-1", "address", "a") == b"here"
    assert rendezvous.set("epoch-2", "never", b"x") == ["a"]
