import os

import pytest

from asyncrl.errors import ConfigError
from asyncrl.weights.groups.network_interface import (
    SHORTEST_S,
    Deadline,
    collective_environment,
    interface_name,
    settings,
    why_unreachable,
)


def test_the_time_left_never_reaches_zero_because_zero_means_no_limit() -> None:
    assert Deadline(0.0).left_s() == SHORTEST_S
    assert 0 < Deadline(100.0).left_s() <= 100.0


def test_a_deadline_that_was_expired_has_passed_long_before_its_time() -> None:
    deadline = Deadline(100.0)
    assert deadline.left_s() > SHORTEST_S
    deadline.expire()
    assert deadline.has_passed
    assert deadline.left_s() == SHORTEST_S
    assert Deadline(0.0).has_passed


# ── test network interface ────────────────────────────────────────────────────────────────────


def test_an_address_is_found_on_its_interface() -> None:
    assert interface_name("127.0.0.1") == "lo"


def test_an_unknown_address_is_refused_with_the_known_ones() -> None:
    expected = r"no network interface of this machine has the address 203\.0\.113\.9; it has .*127\.0\.0\.1 \(lo\)"
    with pytest.raises(ConfigError, match=expected):
        interface_name("203.0.113.9")


def test_each_library_has_variables_of_its_own() -> None:
    assert settings("nccl", "127.0.0.1", 30.0, {}) == {
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "NCCL_SOCKET_IFNAME": "=lo",
    }
    assert settings("hccl", "127.0.0.1", 30.0, {}) == {
        "TORCH_HCCL_BLOCKING_WAIT": "1",
        "TORCH_HCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_HCCL_ENABLE_MONITORING": "0",
        "HCCL_CONNECT_TIMEOUT": "120",
        "HCCL_SOCKET_IFNAME": "=lo",
    }


@pytest.mark.parametrize(("deadline_s", "expected"), [(1.0, 120), (120.5, 121), (300.0, 300), (9000.0, 7200)])
def test_hccl_does_not_give_up_connecting_before_the_deadline_within_what_it_takes(
    deadline_s: float, expected: int
) -> None:
    assert settings("hccl", "127.0.0.1", deadline_s, {})["HCCL_CONNECT_TIMEOUT"] == str(expected)


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_variables_of_the_user_stay_and_the_address_is_not_looked_up(backend: str) -> None:
    theirs = dict.fromkeys(settings(backend, "127.0.0.1", 30.0, {}), "theirs")
    assert settings(backend, "203.0.113.9", 30.0, theirs) == {}


def test_the_environment_is_restored_even_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)

    def connect() -> None:
        with collective_environment("hccl", "127.0.0.1", 30.0):
            raise RuntimeError(os.environ["HCCL_SOCKET_IFNAME"])

    with pytest.raises(RuntimeError, match="=lo"):
        connect()
    assert dict(os.environ) == before


def test_the_variables_stay_until_the_last_of_several_groups_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_SOCKET_IFNAME", raising=False)
    first, second = (collective_environment("hccl", "127.0.0.1", 30.0) for _ in range(2))
    with first:
        second.__enter__()
    assert os.environ["HCCL_SOCKET_IFNAME"] == "=lo"
    second.__exit__(None, None, None)
    assert "HCCL_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ("10.0.0.1", "10.0.0.2", ""),
        ("10.0.0.1", "127.0.0.1", ""),
        ("127.0.0.1", "127.0.0.1", ""),
        ("127.0.0.1", "203.0.113.9", "only its own machine reaches a loopback address; start it with the --broker "),
        ("::1", "2001:db8::9", "only its own machine reaches a loopback address; start it with the --broker "),
        ("10.0.0.1", "2001:db8::9", "they use two versions of IP; name a network of one version in weights.interface"),
    ],
)
def test_addresses_between_which_no_connection_is_possible_are_known(mine: str, theirs: str, expected: str) -> None:
    assert why_unreachable(mine, theirs).startswith(expected)
    assert bool(why_unreachable(mine, theirs)) == bool(expected)
