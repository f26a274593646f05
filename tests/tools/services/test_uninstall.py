"""Files that are removed: those that install wrote, unless they are in use or were changed by hand."""

import socket
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.services.install import SYSTEM_UNITS, to_write, write_files
from asyncrl.tools.services.render import SUPERVISORD, SYSTEMD, Manager, render
from asyncrl.tools.services.uninstall import find_installed, last_steps, remove, require_stopped

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

    assert (found.written, found.others) == (written, [own])
    left = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([own, tmp_path / "other.service"])
    assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == [own.parent], "empty folders go too"
    assert find_installed(manager, tmp_path, force=False).written == []


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
