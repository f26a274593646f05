"""The name of a spool is that of its files."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.spool.folder import FILE, SpoolIdentity, open_folder, write_identity


def test_a_folder_keeps_the_name_of_its_spool_and_its_run(tmp_path: Path) -> None:
    first = open_folder(tmp_path / "a", "spool-0")
    assert first.name == f"spool-0-{first.folder_id}"
    assert first.run_id == ""
    write_identity(tmp_path / "a", SpoolIdentity(first.name, "run-1"))
    assert open_folder(tmp_path / "a", "spool-0") == SpoolIdentity(first.name, "run-1")


def test_a_new_folder_is_another_spool(tmp_path: Path) -> None:
    assert open_folder(tmp_path / "a", "spool-0").name != open_folder(tmp_path / "b", "spool-0").name


def test_a_folder_of_another_spool_is_refused_with_its_name(tmp_path: Path) -> None:
    open_folder(tmp_path, "spool-0")
    with pytest.raises(ConfigError, match="has the payloads of the spool spool-0: give --name spool-0, or another"):
        open_folder(tmp_path, "spool-1")


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(LedgerError, match=r"spool.json is damaged"):
        open_folder(tmp_path, "spool-0")
