"""Files that are removed: those that install wrote, unless they are in use or were changed by hand."""

import socket
from pathlib import Path

import pytest
from msgspec import structs

from asyncrl.errors import ConfigError
from asyncrl.tools.services.install import (
    SYSTEM_UNITS,
    find_installed,
    last_steps,
    remove,
    require_stopped,
    to_write,
    write_files,
)
from asyncrl.tools.services.render import ALL_ROLES, SUPERVISORD, SYSTEMD, Manager, render

SERVICES = {"systemd": SYSTEMD, "supervisord": SUPERVISORD}


def installed(manager: Manager, folder: Path) -> list[Path]:
    """Install the services of a manager; returns the written files."""
    written = to_write(manager, folder, render(manager, SERVICES[manager]), force=False)
    write_files(written)
    return sorted(written)


@pytest.mark.parametrize("manager", ["systemd", "supervisord"])
def test_every_file_that_install_wrote_is_removed_and_no_other(tmp_path: Path, manager: Manager) -> None:
    own = (
        tmp_path
        / {"systemd": "asyncrl@rollout.service.d/50-local.conf", "supervisord": "asyncrl.d/local.conf"}[manager]
    )
    written = installed(manager, tmp_path)
    own.write_text("[Service]\nNice=5\n")
    (tmp_path / "other.service").write_text("[Service]\n")

    found = find_installed(manager, tmp_path, force=False)
    remove(found)

    assert (found.written, found.kept) == (written, {own: "not written by install"})
    left = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([own, tmp_path / "other.service"])
    assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == [own.parent], "empty folders go too"
    assert find_installed(manager, tmp_path, force=False).written == []


def test_the_folder_of_supervisord_goes_with_its_services_and_no_other_folder_of_that_name(tmp_path: Path) -> None:
    control = tmp_path / "supervisord"
    control.mkdir()
    (control / "supervisord.log").touch()
    remove(find_installed("supervisord", tmp_path, force=False))
    assert (control / "supervisord.log").exists(), "nothing was installed here"

    installed("supervisord", tmp_path)
    found = find_installed("supervisord", tmp_path, force=False)
    remove(found)
    assert found.controls == [control / "supervisord.log"]
    assert not tmp_path.exists(), "nothing else was there"


@pytest.mark.parametrize("manager", ["systemd", "supervisord"])
def test_what_the_services_worked_with_is_kept_and_named(tmp_path: Path, manager: Manager) -> None:
    names = ("run", "payloads", "keys", "node.key")
    run, payloads, keys, key = (tmp_path / name for name in names)
    for path in (run, payloads, keys):
        path.mkdir()
    for file in (key, run / "config.toml", run / "secret", run / "logs"):
        file.touch()
    used = structs.replace(
        SERVICES[manager],
        roles=ALL_ROLES,
        run_dir=str(run),
        logs=str(run / "logs"),
        spool_dir=str(payloads),
        keys=str(keys),
        key=str(key),
    )
    write_files(to_write(manager, tmp_path / "files", render(manager, used), force=False))
    assert find_installed(manager, tmp_path / "files", force=False).kept == {
        run: "the run, the secret of the run, logs of the services",
        payloads: "what the spool has stored",
        keys: "the broker's key and its allow-list",
        key: "the key of this machine's nodes",
    }
    for file in (run / "config.toml", run / "secret", payloads):
        file.rmdir() if file.is_dir() else file.unlink()
    kept = find_installed(manager, tmp_path / "files", force=False).kept
    assert (kept.get(run), kept.get(payloads)) == ("logs of the services", None), "a machine without the broker"


def test_a_file_changed_by_hand_is_removed_only_by_force(tmp_path: Path) -> None:
    path = installed("supervisord", tmp_path)[0]
    path.write_text(f"{path.read_text()}; mine\n")
    with pytest.raises(ConfigError, match=r"changed by hand: .*/asyncrl\.conf; copy what you need, then use --force"):
        find_installed("supervisord", tmp_path, force=False)
    assert path in find_installed("supervisord", tmp_path, force=True).written


def test_services_that_are_enabled_are_stopped_first(tmp_path: Path) -> None:
    require_stopped("systemd", tmp_path)
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    (wants / "asyncrl.target").symlink_to(tmp_path / "asyncrl.target")
    with pytest.raises(
        ConfigError, match=r"asyncrl\.target is enabled: .* sudo systemctl disable --now asyncrl\.target"
    ):
        require_stopped("systemd", tmp_path)


def test_a_supervisord_that_answers_is_shut_down_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path()  # A socket has a short path.
    (folder / "supervisord").mkdir()
    require_stopped("supervisord", folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("supervisord/ctl.sock")
        require_stopped("supervisord", folder)
        server.listen()
        with pytest.raises(ConfigError, match=r"supervisord runs with asyncrl\.conf: .*ctl -c asyncrl\.conf shutdown"):
            require_stopped("supervisord", folder)


def test_what_systemd_still_has_is_said(tmp_path: Path) -> None:
    copy = tmp_path / "tmpfiles.d" / "asyncrl.conf"
    copy.parent.mkdir()
    copy.touch()
    reload = "reload   sudo systemctl daemon-reload"
    assert last_steps("systemd", SYSTEM_UNITS, tmp_path) == [reload, f"copy     sudo rm {copy}"]
    assert last_steps("systemd", tmp_path, tmp_path) == last_steps("supervisord", tmp_path, tmp_path) == []
