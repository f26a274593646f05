from pathlib import Path

import pytest

from asyncrl.keys.key import new_key
from asyncrl.keys.key_file import create_key
from asyncrl.node.machine.cluster.key_state import KeyState, read_key_state


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    create_key(tmp_path / "node.key", new_key("gpu1", ("rollout",), bytes(32)))
    return tmp_path / "node.key"


def test_name_and_roles_are_told_and_the_private_key_is_not(key_file: Path) -> None:
    assert read_key_state(key_file) == KeyState(name="gpu1", roles=["rollout"])


def test_a_file_that_no_node_could_use_is_a_problem(key_file: Path) -> None:
    key_file.chmod(0o640)
    assert f"other users can read the key file {key_file} (mode 0640)" in read_key_state(key_file).problem
    key_file.unlink()
    assert "no such key file" in read_key_state(key_file).problem


def test_roles_that_a_key_is_not_for_are_named() -> None:
    key = KeyState(name="gpu1", roles=["rollout"])
    assert key.others(["broker", "rollout", "trainer"]) == ["trainer"]
    assert KeyState(name="gpu1").others(["trainer"]) == [], "the file does not tell"
