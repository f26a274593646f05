import socket

import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime import local_address as module
from asyncrl.runtime.local_address import INTERFACE_VARIABLE, choose, local_address, outward_address, route_to
from asyncrl.weights.groups.network_interface import interface_addresses
from tests.wire.ipv6 import has_ipv6

FOUND = [
    ("lo", "127.0.0.1"),
    ("eth0", "10.0.0.7"),
    ("eth1", "10.1.0.7"),
    ("eth1", "10.1.0.8"),
    ("lo", "::1"),
    ("ib0", "fe80::7"),
    ("ib0", "fd00::7"),
]
HAS = (
    "127.0.0.1 (lo), 10.0.0.7 (eth0), 10.1.0.7 (eth1), 10.1.0.8 (eth1), ::1 (lo), fe80::7 (ib0), fd00::7 (ib0): name "
    "one of these, or a network that includes one"
)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("10.1.0.8", "10.1.0.8"),
        ("fd00:0:0::7", "fd00::7"),
        ("10.1.0.0/16", "10.1.0.7"),
        ("10.1.200.1/16", "10.1.0.7"),
        ("fd00::/64", "fd00::7"),
        ("eth1", "10.1.0.7"),
        ("ib0", "fd00::7"),
        ("lo", "127.0.0.1"),
    ],
)
def test_an_interface_is_an_address_a_network_or_a_name(wanted: str, expected: str) -> None:
    assert choose(wanted, "--interface", FOUND) == expected


@pytest.mark.parametrize("wanted", ["10.9.0.1", "10.9.0.0/16", "eth7", "2001:db8::/32"])
def test_one_that_this_machine_does_not_have_is_refused_with_those_that_it_has(wanted: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(wanted, "weights.interface", FOUND)
    expected = f"weights.interface is {wanted!r}, which no network interface of this machine has; it has {HAS}"
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    "broker", ["ipc:///run/broker", "tcp://127.0.0.1:5570", "tcp://127.9.9.9:1", "tcp://localhost:5570"]
)
def test_the_route_to_a_broker_of_this_machine_is_loopback(broker: str) -> None:
    assert local_address(broker, "", {}) == "127.0.0.1"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
def test_the_route_to_an_ipv6_address_is_one() -> None:
    assert local_address("tcp://[::1]:5570", "", {}) == "::1"


def test_the_route_to_an_address_of_this_machine_is_that_address() -> None:
    for _, address in interface_addresses():
        if not address.startswith("fe80"):
            assert route_to(address) == address


def test_the_run_file_goes_before_the_route_and_the_option_before_the_run_file() -> None:
    assert local_address("tcp://203.0.113.9:5570", "127.0.0.0/8", {}) == "127.0.0.1"
    assert local_address("tcp://203.0.113.9:5570", "eth7", {INTERFACE_VARIABLE: "lo"}) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"^--interface \(ASYNCRL_INTERFACE\) is 'eth7', which no network interface "):
        local_address("ipc:///run/broker", "lo", {INTERFACE_VARIABLE: "eth7"})


def test_an_unknown_broker_is_refused_with_the_addresses_of_this_machine() -> None:
    expected = r"finds no route to the broker's host nowhere\.invalid \(.+\); it has .*127\.0\.0\.1 \(lo\).*--interface"
    with pytest.raises(ConfigError, match=expected):
        local_address("tcp://nowhere.invalid:5570", "", {})


def test_a_name_of_both_versions_means_ipv4_as_it_does_for_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*_: object, **__: object) -> list[tuple[object, ...]]:
        datagram = (socket.SOCK_DGRAM, socket.IPPROTO_UDP, "")
        return [(socket.AF_INET6, *datagram, ("::1", 9, 0, 0)), (socket.AF_INET, *datagram, ("127.0.0.1", 9))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert route_to("gpu-7") == "127.0.0.1"


class NoRoute(socket.socket):
    def connect(self, _: object) -> None:
        raise OSError("Network is unreachable")


@pytest.mark.parametrize(("found", "expected"), [(FOUND, "10.0.0.7"), (FOUND[:1], "127.0.0.1")])
def test_without_a_default_route_the_first_address_that_others_may_reach_leads_outside(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, str]], expected: str
) -> None:
    monkeypatch.setattr(socket, "socket", NoRoute)
    monkeypatch.setattr(module, "interface_addresses", lambda: found)
    assert outward_address() == expected


def test_the_way_outside_is_an_address_of_this_machine() -> None:
    assert outward_address() in {address for _, address in interface_addresses()}
