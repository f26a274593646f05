from typing import Any

import pytest

from asyncrl.config.addresses import check_gateway_address, check_host, check_interface
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import ConfigError

TWO = ["tcp://10.0.0.1:5570", "tcp://192.168.0.1:5570"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bind": "ipc:///run/broker"},
        {"bind": "tcp://0.0.0.0:5570"},
        {"bind": "tcp://[2001:db8::1]:5570"},
        {"bind": "tcp://gpu-7:5570", "spool_bind": "tcp://gpu-7:5571"},
        {"bind": TWO},
        {"bind": ["tcp://127.0.0.1:5570", "tcp://10.0.0.1:5570"]},
        {"bind": TWO, "spool_bind": ["tcp://10.0.0.1:5571", "tcp://192.168.0.1:5571"]},
        {"bind": "tcp://*:5570", "advertise": "gpu-7.example.org"},
        {"bind": "tcp://127.0.0.1:5570", "spool_bind": "tcp://127.0.0.1:5571", "advertise": "2001:db8::1"},
    ],
)
def test_addresses_that_nodes_can_reach_are_accepted(settings: dict[str, Any]) -> None:
    Broker(**settings).check_addresses()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bind": ""}, "broker.bind is empty: give an address to listen on, such as tcp://127.0.0.1:0"),
        ({"bind": []}, "broker.bind is empty: give an address to listen on, such as tcp://127.0.0.1:0"),
        ({"bind": [TWO[0], "tcp://x"]}, "broker.bind is 'tcp://x': expected tcp://HOST:PORT or ipc://PATH"),
        (
            {"bind": [TWO[0], "tcp://*:5570"]},
            "broker.bind lists 'tcp://*:5570' among others, but a wildcard includes all others: give it alone",
        ),
        (
            {"bind": [TWO[0], "ipc:///run/broker"]},
            "broker.bind lists 'ipc:///run/broker' among others, but it is a unix socket: give it alone",
        ),
        (
            {"bind": TWO, "spool_bind": ["tcp://10.0.0.1:5571", "tcp://192.168.0.1:5572"]},
            "broker.spool_bind is ['tcp://10.0.0.1:5571', 'tcp://192.168.0.1:5572']: expected one port for all of its "
            "addresses",
        ),
        (
            {"bind": "tcp://*:5570", "spool_bind": "tcp://127.0.0.1:5571"},
            "broker.spool_bind is 'tcp://127.0.0.1:5571', which no other machine reaches, but broker.bind is "
            "'tcp://*:5570': give an address like it, or leave spool_bind empty for a free port",
        ),
        (
            {"bind": "tcp://*:5570", "spool_bind": "ipc:///run/spool", "advertise": "gpu-7"},
            "broker.spool_bind is 'ipc:///run/spool', which no other machine reaches, but broker.bind is "
            "'tcp://*:5570': give an address like it, or leave spool_bind empty for a free port",
        ),
        (
            {"bind": "ipc:///run/broker", "advertise": "gpu-7"},
            "broker.advertise is only read if broker.bind is a tcp address, not 'ipc:///run/broker'",
        ),
        (
            {"bind": "tcp://*:5570", "advertise": "gpu-7:5570"},
            "broker.advertise is 'gpu-7:5570': expected a name or an address of one machine, without a port",
        ),
    ],
)
def test_addresses_that_nodes_cannot_reach_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Broker(**settings).check_addresses()
    assert str(refused.value) == sentence


def test_a_run_of_one_machine_listens_on_loopback_addresses() -> None:
    Broker().check_one_machine()
    Broker(bind="tcp://127.0.0.1:5570", spool_bind="ipc:///run/spool").check_one_machine()
    for broker in (Broker(bind="tcp://*:5570"), Broker(spool_bind="tcp://10.0.0.1:5571")):
        with pytest.raises(ConfigError, match=r"listens on tcp://.*, which needs keys: .* --role broker --keys DIR$"):
            broker.check_one_machine()


@pytest.mark.parametrize("host", ["gpu-7", "10.0.0.1", "2001:db8::1"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    check_host(host, "broker.advertise")


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "tcp://gpu-7", "a b", ":::"])
def test_a_host_is_one_machine(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker\.advertise is .* without a port$"):
        check_host(host, "broker.advertise")


@pytest.mark.parametrize(
    "interface", ["eth0", "enp1s0f0.12", "10.1.0.0/16", "10.1.2.3/16", "fd00::/64", "10.1.2.3", "::1"]
)
def test_an_interface_is_a_name_a_network_or_an_address(interface: str) -> None:
    check_interface(interface, "--interface")


@pytest.mark.parametrize("interface", ["10.1.0.0/33", "eth0/16", "tcp://10.0.0.1", "a-name-of-16-byte", "eth 0", ""])
def test_any_other_interface_is_one_sentence(interface: str) -> None:
    with pytest.raises(ConfigError, match=r"^--interface is .*: expected a network interface such as eth0, "):
        check_interface(interface, "--interface")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://10.0.0.7:9000", "tcp://[::1]:0"])
def test_the_gateway_listens_on_one_host(address: str) -> None:
    check_gateway_address(address)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:0", "tcp://*:0", "tcp://0.0.0.0:9000", "ipc:///tmp/gateway", "tcp://x:y"]
)
def test_an_address_at_which_programs_cannot_be_told_to_connect_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.gateway is"):
        check_gateway_address(address)
