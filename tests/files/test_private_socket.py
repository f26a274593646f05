from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.private_socket import private_address


def test_every_start_of_a_run_has_the_same_private_folder(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    address = private_address("spool", "a" * 32, environment)
    assert address == private_address("spool", "a" * 32, environment)
    folder = Path(address.removeprefix("ipc://")).parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_address("spool", "b" * 32, environment) != address


def test_the_folder_of_a_service_comes_first(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/nowhere", "RUNTIME_DIRECTORY": f"{tmp_path}:/other"}
    assert private_address("spool", "a" * 32, environment).startswith(f"ipc://{tmp_path}/")


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    Path(private_address("spool", "a" * 32, environment).removeprefix("ipc://")).parent.chmod(0o755)
    with pytest.raises(ConfigError, match="is open to other users: remove it"):
        private_address("spool", "a" * 32, environment)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    folder = Path(private_address("spool", "a" * 32, environment).removeprefix("ipc://")).parent
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is open to other users"):
        private_address("spool", "a" * 32, environment)
