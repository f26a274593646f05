"""Written files: idempotent, and never over a change made by hand."""

import getpass
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.access import read_secret
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.tools.services.install import (
    SYSTEM_UNITS,
    ServiceUser,
    closed_folder,
    find_owner,
    make_folders,
    make_secret,
    metrics_by_role,
    next_steps,
    problems,
    to_write,
    told,
    write_files,
)
from asyncrl.tools.services.render import Manager

TEXTS = {"a.service": "[Service]\nExecStart=/bin/true\n", "a.service.d/10.conf": "[Service]\nUMask=0077\n"}


def write(folder: Path, texts: Mapping[str, str], manager: Manager = "systemd", *, force: bool = False) -> list[Path]:
    """Write what differs; returns the files that changed."""
    changed = to_write(manager, folder, texts, force=force)
    write_files(changed)
    return list(changed)


def test_files_are_written_once(tmp_path):
    assert write(tmp_path, TEXTS) == [tmp_path / name for name in TEXTS]
    assert write(tmp_path, TEXTS) == []
    assert all((tmp_path / name).read_text().endswith(text) for name, text in TEXTS.items())


def test_a_new_text_replaces_an_old_one_that_nobody_changed(tmp_path):
    write(tmp_path, TEXTS)
    newer = TEXTS | {"a.service": "[Service]\nExecStart=/bin/false\n"}
    assert write(tmp_path, newer) == [tmp_path / "a.service"]


@pytest.mark.parametrize("by_hand", ["another first line\n", ""])
def test_a_file_changed_by_hand_is_kept_and_nothing_else_is_written(tmp_path, by_hand):
    write(tmp_path, TEXTS)
    path = tmp_path / "a.service"
    path.write_text(by_hand + path.read_text() + "Nice=5\n")
    newer = {name: text + "# newer\n" for name, text in TEXTS.items()}
    with pytest.raises(ConfigError, match=r"changed by hand: .*a\.service; keep the changes in a drop-in"):
        write(tmp_path, newer)
    assert "Nice=5" in path.read_text()
    assert "newer" not in (tmp_path / "a.service.d" / "10.conf").read_text()
    assert write(tmp_path, newer, force=True) == [tmp_path / name for name in TEXTS]
    assert "Nice=5" not in path.read_text()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot (write|read) .*a\.service"):
        write(tmp_path / "file", TEXTS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_names_a_mistake():
    texts = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\nColour=red\n"}
    (problem,) = problems("systemd", texts) or []
    assert "Colour" in problem
    assert problem.startswith("asyncrl-x.service:"), "the file is not written yet, and has no folder"
    good = {"asyncrl-x.service": "[Service]\nExecStart=/bin/true\n"}
    assert problems("systemd", good) == []


def test_supervisord_names_a_mistake():
    pytest.importorskip("supervisor")
    good = "[supervisord]\n[program:x]\ncommand=/bin/true\n"
    for text, count in ((good, 0), (good + "startsecs=soon\n", 1)):
        assert len(problems("supervisord", {"asyncrl.conf": text}) or []) == count


def test_what_an_operator_changed_is_kept_where_the_manager_reads_it(tmp_path: Path):
    (tmp_path / "asyncrl.conf").write_text("mine\n")
    with pytest.raises(
        ConfigError, match=r"keep the changes in a file of its folder asyncrl\.d, such as asyncrl\.d/local"
    ):
        write(tmp_path, {"asyncrl.conf": "[supervisord]\n"}, "supervisord")


# ── test metrics ports ────────────────────────────────────────────────────────────────────────
# No two services of a machine have one port.


def test_each_role_has_the_port_after_that_of_the_role_before():
    given = metrics_by_role(MetricsOptions("127.0.0.1", 9400), ("broker", "reward", "rollout"))
    assert given == {
        "broker": {"ASYNCRL_METRICS": "127.0.0.1:9400"},
        "reward": {"ASYNCRL_METRICS": "127.0.0.1:9401"},
        "rollout": {"ASYNCRL_METRICS": "127.0.0.1:9402"},
    }


def test_without_metrics_there_are_no_variables():
    assert metrics_by_role(None, ("broker",)) == {}


def test_replicas_have_the_ports_after_the_last_role():
    options = MetricsOptions("10.0.0.1", 9400)
    assert (
        told(options, ("reward", "rollout")) == "reward 10.0.0.1:9400, rollout 10.0.0.1:9401, its replicas from 9402 on"
    )
    assert told(options, ("broker", "reward")) == "broker 10.0.0.1:9400, reward 10.0.0.1:9401"


def test_free_ports_are_not_counted():
    assert told(MetricsOptions("::1", 0), ("rollout",)) == "rollout [::1]:0"


# ── test next steps ───────────────────────────────────────────────────────────────────────────
# The commands after an install put every file where its program reads it.

ADA = ServiceUser("ada", "ada", "/home/ada", (1000, 1000))
NEW = ServiceUser("new", "new")
FOLDER = Path("/f")
LOGS = Path("/run/logs")


def test_a_running_supervisord_takes_over_a_file_that_was_replaced():
    first = next_steps("supervisord", FOLDER, ADA, is_replaced=False, logs=LOGS)
    later = next_steps("supervisord", FOLDER, ADA, is_replaced=True, logs=LOGS)
    (apply,) = set(later) - set(first)
    assert "ctl -c /f/asyncrl.conf update" in apply


def test_units_in_place_need_no_copy():
    steps = next_steps("systemd", SYSTEM_UNITS, ADA, is_replaced=False, logs=LOGS)
    assert [step.split()[0] for step in steps] == ["start", "status", "log"]


def test_only_units_are_copied_to_the_units():
    copy, folders, *_ = next_steps("systemd", FOLDER, ADA, is_replaced=False, logs=LOGS)
    assert copy == "copy     sudo cp -r /f/asyncrl*.service* /f/asyncrl.target /etc/systemd/system/"
    assert "/f/asyncrl.tmpfiles /etc/tmpfiles.d/asyncrl.conf" in folders


def test_a_new_user_is_made_before_its_folders_and_services():
    steps = next_steps("systemd", SYSTEM_UNITS, NEW, is_replaced=True, logs=LOGS)
    assert [step.split()[0] for step in steps] == ["user", "folders", "start", "apply", "status", "log"]
    assert "asyncrl.sysusers /etc/sysusers.d/asyncrl.conf && sudo systemd-sysusers" in steps[0]


def test_logs_are_named_where_the_manager_puts_them():
    logs: dict[Manager, str] = {"supervisord": "tail -F /run/logs/*.log", "systemd": "journalctl -u 'asyncrl*' -f"}
    for manager, log in logs.items():
        assert next_steps(manager, FOLDER, ADA, is_replaced=False, logs=LOGS)[-1] == f"log      {log}"


# ── test owner ────────────────────────────────────────────────────────────────────────────────
# Folders and secrets are for the user of the services alone.


def test_the_owner_is_the_current_user_unless_another_is_named():
    owner = find_owner(None, is_made_later=False)
    assert owner.name == getpass.getuser()
    assert owner.ids is not None
    assert owner.ids[0] == os.geteuid()


def test_a_missing_user_is_refused_unless_it_is_made_later():
    with pytest.raises(ConfigError, match="there is no such user; create it, for example with useradd"):
        find_owner("nobody-here", is_made_later=False)
    assert find_owner("nobody-here", is_made_later=True) == ServiceUser("nobody-here", "nobody-here")


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_folders_are_those_of_the_owner(tmp_path: Path):
    make_folders([tmp_path / "a" / "b"], find_owner(None, is_made_later=False))
    assert modes(tmp_path / "a", tmp_path / "a" / "b") == [0o700, 0o700]


def test_a_user_that_is_made_later_may_pass_the_parents_of_its_folder(tmp_path: Path):
    before = os.umask(0o022)
    try:
        make_folders([tmp_path / "a" / "b"], ServiceUser("new", "new"))
    finally:
        os.umask(before)
    assert modes(tmp_path / "a", tmp_path / "a" / "b") == [0o755, 0o700]


def test_a_secret_is_made_once(tmp_path: Path):
    owner = find_owner(None, is_made_later=False)
    make_secret(tmp_path / "secret", owner)
    made = read_secret(tmp_path / "secret")
    make_secret(tmp_path / "secret", owner)
    assert read_secret(tmp_path / "secret") == made


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot create .*file: File exists"):
        make_folders([tmp_path / "file" / "a"], find_owner(None, is_made_later=False))


def test_a_folder_is_closed_to_those_whom_its_mode_keeps_out(tmp_path: Path):
    folder = tmp_path / "a"
    folder.mkdir(mode=0o700)
    stranger, found = ServiceUser("nobody", "nogroup", ids=(65534, 65534)), folder.stat()
    group = ServiceUser("nobody", "x", ids=(65534, found.st_gid))
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    assert closed_folder(folder / "python", stranger) == folder
    assert closed_folder(folder / "python", ServiceUser("new", "new")) == folder
    assert closed_folder(folder / "python", ServiceUser("root", "root", ids=(0, 0))) is None
    assert closed_folder(folder / "python", ServiceUser("me", "me", ids=(found.st_uid, -1))) is None
    folder.chmod(0o710)
    assert closed_folder(folder / "python", group) is None
    assert closed_folder(folder / "python", stranger) == folder
