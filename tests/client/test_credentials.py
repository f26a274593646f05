from pathlib import Path

import pytest

from asyncrl.actor.sockets.curve import LinkKeys, hub_keys_of
from asyncrl.client.credentials import read_credentials
from asyncrl.errors import ConfigError
from asyncrl.files.secret_file import new_secret, write_secret
from asyncrl.keys.key import new_key
from asyncrl.keys.key_file import write_key


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
