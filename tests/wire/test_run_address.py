import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.access import new_secret, write_secret
from asyncrl.wire.curve import LinkKeys, hub_keys_of, link_keys_of
from asyncrl.wire.keys.key import new_key, write_key
from asyncrl.wire.run_address import (
    RunAddress,
    find_run,
    leave_credentials,
    locate,
    read_credentials,
    remove_credentials,
)


def test_a_key_file_gives_its_name_and_the_keys_of_both_ends(tmp_path: Path) -> None:
    key = new_key("gpu-1", ["rollout"], broker=bytes(range(32)))
    write_key(tmp_path / "node.key", key)
    found = read_credentials(tmp_path / "node.key")
    assert found.name == "gpu-1"
    assert found.keys == LinkKeys(key.public, key.private, key.broker)


def test_a_secret_file_gives_keys_for_the_hub_of_its_run(tmp_path: Path) -> None:
    secret = new_secret()
    write_secret(tmp_path / "secret", secret)
    found = read_credentials(tmp_path / "secret")
    assert found.name == ""
    assert found.keys.hub == hub_keys_of(secret).public


def test_the_key_of_the_broker_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "broker.key", new_key("broker", ()))
    with pytest.raises(ConfigError, match=r"broker\.key is the key of the broker: give the key of a node"):
        read_credentials(tmp_path / "broker.key")


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", new_secret())
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read the secret file"):
        read_credentials(tmp_path / "secret")


# ── test run address ──────────────────────────────────────────────────────────────────────────

TCP = "tcp://127.0.0.1:5570"


def test_a_run_directory_gives_address_and_secret(tmp_path: Path) -> None:
    secret = new_secret()
    (tmp_path / "broker.address").write_text(f"{TCP}\n")
    write_secret(tmp_path / "secret", secret)
    run = locate(str(tmp_path))
    assert (run.broker, run.credentials_file) == (TCP, tmp_path / "secret")
    assert (keys := run.keys())
    assert keys.hub == link_keys_of(secret).hub


def test_the_key_in_a_run_directory_comes_before_its_secret(tmp_path: Path) -> None:
    (tmp_path / "broker.address").write_text(f"{TCP}\n")
    write_secret(tmp_path / "secret", new_secret())
    (tmp_path / "key").write_text("")
    assert locate(str(tmp_path), environment={"ASYNCRL_SECRET_FILE": "/s"}).credentials_file == tmp_path / "key"
    assert locate(str(tmp_path), environment={"ASYNCRL_KEY_FILE": "/k"}).credentials_file == Path("/k")


def test_of_several_addresses_the_first_that_other_machines_reach_is_taken(tmp_path: Path) -> None:
    (tmp_path / "broker.address").write_text("tcp://127.0.0.1:5570\ntcp://10.0.0.1:5570\ntcp://10.0.0.2:5570\n")
    assert locate(str(tmp_path)).broker == "tcp://10.0.0.1:5570"


def test_a_unix_socket_needs_no_secret() -> None:
    assert locate("ipc:///run/broker", environment={}) == RunAddress("ipc:///run/broker")


def test_credentials_of_an_address_are_given_configured_or_left_by_its_broker(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    secret = new_secret()
    write_secret(tmp_path / "secret", secret)
    leave_credentials(TCP, tmp_path / "secret", environment)
    left = locate(TCP, environment=environment)
    assert (keys := left.keys())
    assert keys.hub == link_keys_of(secret).hub
    environment["CREDENTIALS_DIRECTORY"] = str(tmp_path)
    write_secret(tmp_path / "asyncrl.secret", new_secret())
    assert locate(TCP, environment=environment).credentials_file == tmp_path / "asyncrl.secret"
    environment["ASYNCRL_SECRET_FILE"] = "/named"
    assert locate(TCP, environment=environment).credentials_file == Path("/named")
    (tmp_path / "asyncrl.key").write_text("")
    assert locate(TCP, environment=environment).credentials_file == tmp_path / "asyncrl.key"
    environment["ASYNCRL_KEY_FILE"] = "/key"
    assert locate(TCP, environment=environment).credentials_file == Path("/key")
    assert locate(TCP, Path("/given"), environment).credentials_file == Path("/given")


def test_credentials_are_removed_with_their_broker(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    write_secret(tmp_path / "secret", new_secret())
    leave_credentials(TCP, tmp_path / "secret", environment)
    remove_credentials(TCP, environment)
    remove_credentials(TCP, environment)
    with pytest.raises(ConfigError, match="no broker of this user has left credentials"):
        locate(TCP, environment=environment)


def test_credentials_are_left_by_address(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    write_secret(tmp_path / "secret", new_secret())
    leave_credentials(TCP, tmp_path / "secret", environment)
    with pytest.raises(ConfigError, match=r"no broker of this user has left credentials for tcp://127\.0\.0\.1:5571"):
        locate("tcp://127.0.0.1:5571", environment=environment)


def test_neither_address_nor_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is neither a broker's address nor a run directory with broker\.address"):
        locate(str(tmp_path))


def test_a_child_process_gets_the_credentials_by_its_environment() -> None:
    assert RunAddress(TCP, Path("/s")).environment() == {"ASYNCRL_KEY_FILE": "/s"}
    assert RunAddress("ipc:///x").environment() == {}


def test_a_node_waits_for_a_broker_that_starts_later(tmp_path: Path) -> None:
    async def sleep(_: float) -> None:
        (tmp_path / "broker.address").write_text("ipc:///run/broker\n")

    assert asyncio.run(find_run(str(tmp_path), None, 10.0, sleep=sleep)) == RunAddress("ipc:///run/broker")


def test_a_broker_that_never_starts_is_reported(tmp_path: Path) -> None:
    times = iter(range(100))

    async def sleep(_: float) -> None: ...

    with pytest.raises(LinkError, match=r"no broker was found within 5 s: .*broker\.address"):
        asyncio.run(find_run(str(tmp_path), None, 5.0, sleep=sleep, clock=lambda: next(times)))


def test_a_long_wait_for_a_run_is_logged_once_with_its_reason(tmp_path: Path) -> None:
    times = iter(range(100))

    async def sleep(_: float) -> None: ...

    with capture_logs() as logs, pytest.raises(LinkError):
        asyncio.run(find_run(str(tmp_path), None, 20.0, sleep=sleep, clock=lambda: next(times)))
    (warning,) = logs
    assert warning["event"] == "run.awaited"
    assert warning["cause"].startswith(f"{tmp_path} is neither a broker's address nor a run directory")
