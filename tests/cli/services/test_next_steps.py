"""The commands after an install put every file where its program reads it."""

from pathlib import Path

from asyncrl.cli.services.next_steps import SYSTEM_UNITS, next_steps
from asyncrl.cli.services.owner import Owner
from asyncrl.cli.services.render import Manager

ADA = Owner("ada", "ada", "/home/ada", (1000, 1000))
NEW = Owner("new", "new")
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
