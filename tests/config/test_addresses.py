import pytest

from asyncrl.errors import ConfigError
from asyncrl.wire.addresses import announced, bound_again, check_address, is_loopback, is_wildcard, reached


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:5570", "tcp://gpu-7.cluster:1", "tcp://[::1]:65535", "ipc:///run/broker", "ipc://" + "a" * 107],
)
def test_an_address_to_connect_to_is_accepted(address: str) -> None:
    check_address(address, "--broker")


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:0",
        "tcp://*:5570",
        "tcp://0.0.0.0:5570",
        "tcp://[::]:5570",
        "tcp://[::1]:0",
        "ipc:///run/broker",
    ],
)
def test_an_address_to_listen_on_is_accepted(address: str) -> None:
    check_address(address, "broker.bind", binds=True)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://localhost:99999", "expected a port from 1 to 65535, got 99999"),
        ("tcp://localhost:0", "expected a port from 1 to 65535, got 0"),
        ("tcp://localhost", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://localhost:", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://*:5570", "a wildcard is an address to listen on; expected the host that listens"),
        ("tcp://0.0.0.0:5570", "a wildcard is an address to listen on; expected the host that listens"),
        ("tcp://[::]:5570", "a wildcard is an address to listen on; expected the host that listens"),
        ("tcp://[::1::2]:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://::1:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://a b:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://localhost:5570/x", "expected tcp://HOST:PORT or ipc://PATH"),
        ("tcp://localhost:-1", "expected tcp://HOST:PORT or ipc://PATH"),
        ("http://localhost:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("localhost:5570", "expected tcp://HOST:PORT or ipc://PATH"),
        ("", "expected tcp://HOST:PORT or ipc://PATH"),
        ("ipc://", "expected ipc:// and the path of a socket, such as ipc:///run/broker"),
        ("ipc://" + "a" * 108, "its path has 108 bytes, and a Unix socket takes at most 107; use a shorter one"),
    ],
)
def test_any_other_is_one_sentence_with_the_name_of_the_setting(address: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_address(address, "--broker")
    assert str(refused.value) == f"--broker is {address!r}: {expected}"


def test_a_port_to_listen_on_is_bounded_too() -> None:
    with pytest.raises(ConfigError, match="expected a port from 0 to 65535, got 65536"):
        check_address("tcp://127.0.0.1:65536", "broker.bind", binds=True)


@pytest.mark.parametrize(
    "address", ["tcp://localhost:1", "tcp://127.0.0.1:1", "tcp://127.255.3.4:1", "tcp://[::1]:1", "ipc:///run/broker"]
)
def test_loopback_is_what_no_other_machine_reaches(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:1",
        "tcp://0.0.0.0:1",
        "tcp://[::]:1",
        "tcp://10.0.0.1:1",
        "tcp://[2001:db8::1]:1",
        "tcp://[fe80::1]:1",
        "tcp://128.0.0.1:1",
        "tcp://localhost.example.org:1",
        "tcp://gpu-7:1",
    ],
)
def test_wildcards_names_and_all_other_addresses_are_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://*:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://[0:0::0]:1", True),
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://gpu-7:1", False),
        ("ipc://*", False),
    ],
)
def test_a_wildcard_stands_for_all_addresses_of_a_machine(address: str, expected: bool) -> None:
    assert is_wildcard(address) == expected


@pytest.mark.parametrize(
    ("bound", "advertise", "expected"),
    [
        (["ipc:///run/spool"], "", "ipc:///run/spool"),
        (["ipc:///run/spool"], "gpu-7", "ipc:///run/spool"),
        (["tcp://10.0.0.1:5571"], "", "tcp://10.0.0.1:5571"),
        (["tcp://0.0.0.0:5571"], "", "tcp://*:5571"),
        (["tcp://[::]:5571"], "", "tcp://*:5571"),
        (["tcp://10.0.0.1:5571", "tcp://[fd00::1]:5571"], "", "tcp://*:5571"),
        (["tcp://0.0.0.0:5571"], "gpu-7", "tcp://gpu-7:5571"),
        (["tcp://10.0.0.1:5571"], "2001:db8::1", "tcp://[2001:db8::1]:5571"),
    ],
)
def test_a_broker_announces_a_host_only_where_there_is_one(bound: list[str], advertise: str, expected: str) -> None:
    assert announced(bound, advertise) == expected


@pytest.mark.parametrize(
    ("address", "via", "expected"),
    [
        ("tcp://*:5571", "tcp://gpu-7:5570", "tcp://gpu-7:5571"),
        ("tcp://*:5571", "tcp://[2001:db8::1]:5570", "tcp://[2001:db8::1]:5571"),
        ("tcp://*:5571", "ipc:///run/broker", "tcp://127.0.0.1:5571"),
        ("tcp://10.0.0.1:5571", "tcp://gpu-7:5570", "tcp://10.0.0.1:5571"),
        ("ipc:///run/spool", "tcp://127.0.0.1:5570", "ipc:///run/spool"),
    ],
)
def test_a_node_puts_the_host_at_which_it_reached_the_broker_for_the_wildcard(
    address: str, via: str, expected: str
) -> None:
    assert reached(address, via) == expected


@pytest.mark.parametrize(
    ("binds", "before", "expected"),
    [
        (["tcp://127.0.0.1:0"], [], ["tcp://127.0.0.1:0"]),
        (["tcp://127.0.0.1:0"], ["tcp://127.0.0.1:4711"], ["tcp://127.0.0.1:4711"]),
        (["tcp://*:0"], ["tcp://10.0.0.1:4711"], ["tcp://*:4711"]),
        (
            ["tcp://[::1]:0", "tcp://10.0.0.1:0"],
            ["tcp://[::1]:1", "tcp://10.0.0.1:2"],
            ["tcp://[::1]:1", "tcp://10.0.0.1:2"],
        ),
        (["tcp://127.0.0.1:5570"], ["tcp://127.0.0.1:4711"], ["tcp://127.0.0.1:5570"]),
        (["ipc://*"], ["ipc:///tmp/a"], ["ipc:///tmp/a"]),
        (["ipc:///run/b"], ["ipc:///tmp/a"], ["ipc:///run/b"]),
        (["tcp://127.0.0.1:0"], ["ipc:///tmp/a"], ["tcp://127.0.0.1:0"]),
    ],
)
def test_a_restarted_broker_takes_its_old_port_where_any_would_do(
    binds: list[str], before: list[str], expected: list[str]
) -> None:
    assert bound_again(binds, before) == expected
