"""The commands that follow `asyncrl services install`, one line each."""

import shutil
import sys
from pathlib import Path

from asyncrl.cli.services.owner import Owner
from asyncrl.cli.services.render import Manager

SYSTEM_UNITS = Path("/etc/systemd/system")


def next_steps(manager: Manager, folder: Path, owner: Owner, *, is_replaced: bool, logs: Path) -> list[str]:
    """
    Lines with the commands that start, apply and watch the services in ``folder``.

    ``is_replaced`` is true if files that were there are different now, and may be in use; ``logs`` is the folder for
    the logs of supervisord's services.
    """
    return _systemd(folder, owner, is_replaced) if manager == "systemd" else _supervisord(folder, is_replaced, logs)


def _supervisord(folder: Path, is_replaced: bool, logs: Path) -> list[str]:
    supervisord = shutil.which("supervisord", path=str(Path(sys.executable).parent)) or "supervisord"
    path = folder / "asyncrl.conf"
    control = f"{supervisord.removesuffix('d')}ctl -c {path}"
    apply = [f"apply    {control} update    (if supervisord runs already)"] if is_replaced else []
    return [f"start    {supervisord} -c {path}", *apply, f"status   {control} status", f"log      tail -F {logs}/*.log"]


def _systemd(folder: Path, owner: Owner, is_replaced: bool) -> list[str]:
    is_elsewhere = folder != SYSTEM_UNITS
    steps = []
    if is_elsewhere:
        steps.append(f"copy     sudo cp -r {folder}/asyncrl*.service* {folder}/asyncrl.target {SYSTEM_UNITS}/")
    if owner.ids is None:
        steps.append(f"user     {_placed(folder, 'sysusers')} && sudo systemd-sysusers asyncrl.conf")
    if is_elsewhere or owner.ids is None:
        steps.append(f"folders  {_placed(folder, 'tmpfiles')} && sudo systemd-tmpfiles --create asyncrl.conf")
    steps.append("start    sudo systemctl daemon-reload && sudo systemctl enable --now asyncrl.target")
    if is_replaced:
        steps.append("apply    sudo systemctl daemon-reload && sudo systemctl restart asyncrl.target")
    return [*steps, "status   systemctl status 'asyncrl*'", "log      journalctl -u 'asyncrl*' -f"]


def _placed(folder: Path, kind: str) -> str:
    """Command that puts a file where systemd reads files of its kind."""
    return f"sudo install -Dm 644 {folder}/asyncrl.{kind} /etc/{kind}.d/asyncrl.conf"
