"""The units in conf/systemd: the installer's own, clean, and true to the command line and its exit codes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from asyncrl.cli.node import main
from asyncrl.config.sections.rollout import Rollout
from asyncrl.errors import ToldToLeave
from asyncrl.tools.services.install import write_files
from asyncrl.tools.services.render import SYSTEMD, render
from tests.conf.unit_manager import Unit

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "conf" / "systemd"
NAMES = ["asyncrl-broker.service", *(f"asyncrl@{role}.service" for role in ("reward", "trainer", "rollout"))]
REMOTE = {
    "address": "tcp://10.0.0.1:5570",
    "key": "/etc/asyncrl/node.key",
    "key_name": "n1",
    "spool_dir": "/var/spool/asyncrl",
}
SEVERAL = {
    "asyncrl-broker.service": msgspec.structs.replace(SYSTEMD, address="tcp://*:5570", keys="/etc/asyncrl/keys"),
    **{
        f"asyncrl@{role}.service": msgspec.structs.replace(SYSTEMD, roles=(role,), **REMOTE)
        for role in ("spool", "reward", "trainer", "rollout")
    },
}
"""Unit -> settings of a machine of a run on several machines."""
MOST_EXPOSED = {"asyncrl-broker.service": 1.5, "asyncrl@reward.service": 3.4}
"""Highest exposure of a unit, of 10, as `systemd-analyze security` counts it."""
OTHERS_EXPOSED = 2.2


def test_the_units_are_those_that_the_installer_writes():
    texts = render("systemd", SYSTEMD)
    for kind in ("gpu", "ascend"):
        of_kind = render("systemd", msgspec.structs.replace(SYSTEMD, devices=kind))
        texts[f"devices-{kind}.conf"] = of_kind["asyncrl@trainer.service.d/20-devices.conf"]
    found = {str(path.relative_to(UNITS)): path.read_text() for path in UNITS.rglob("*") if path.is_file()}
    assert found == texts


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_unit_exists(name):
    unit = Unit(UNITS, name)
    program, *words = unit.command(unit.environment())
    assert Path(program).name == "asyncrl-node"
    options = {option for parameter in main.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("name", [name for name in SEVERAL if name != "asyncrl@spool.service"])
def test_every_option_of_a_unit_of_several_machines_exists(name, tmp_path):
    write_files({tmp_path / file: text for file, text in render("systemd", SEVERAL[name]).items()})
    unit = Unit(tmp_path, name)
    _, *words = unit.command(unit.environment())
    options = main.make_context("asyncrl-node", words).params
    assert options["role"] in name
    assert options["address"] == SEVERAL[name].address


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_names_documented_exit_codes_only(name):
    documented = re.findall(r"(?m)^\| (\d+) \|", (ROOT / "docs" / "operations.md").read_text())
    listed = Unit(UNITS, name).get("RestartPreventExitStatus").split()
    assert set(listed) <= set(documented)
    assert {"0", "74", "78"} <= set(listed)
    assert not {"69", "70"} & set(listed), "these are worth a restart"


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_starts_again_what_a_signal_ended_and_a_stop_is_no_failure(name):
    """Signals alone end a service cleanly, after which Restart=on-failure would leave it down."""
    unit, code = Unit(UNITS, name), str(ToldToLeave.exit_code)
    assert unit.get("RestartForceExitStatus").split() == [code, "SIGTERM", "SIGHUP", "SIGINT"]
    assert unit.get("SuccessExitStatus") == code
    assert code not in unit.get("RestartPreventExitStatus").split()


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_restarts_for_ever_what_is_killed_and_waits_for_what_drains(name):
    unit = Unit(UNITS, name)
    assert (unit.get("Type"), unit.get("Restart"), unit.get("KillMode")) == ("notify", "on-failure", "mixed")
    assert unit.get("NotifyAccess") == "main"
    assert unit.seconds("WatchdogSec", 0) > 0
    assert unit.seconds("TimeoutStopSec", 0) > (Rollout().drain_s if "@" in name else 30)


# ── systemd's own checks ────────────────────────────────────────────────────────────────────


@pytest.fixture
def analyze(tmp_path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """
    Run systemd-analyze on a unit of conf/systemd, or of ``texts``, beside all others; their program is replaced by one
    that exists here.
    """
    if not (program := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    folder = tmp_path / "units"
    shipped = {str(path.relative_to(UNITS)): path.read_text() for path in UNITS.rglob("*") if path.is_file()}

    def analyze(
        name: str, *command: str, texts: dict[str, str] = shipped, replace: tuple[str, str] = ("", "")
    ) -> "subprocess.CompletedProcess[str]":
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text.replace(SYSTEMD.program, sys.executable))
        stem, at, _ = name.partition("@")
        path = folder / (f"{stem}@.service" if at else name)
        path.write_text(path.read_text().replace(*replace) if replace[0] else path.read_text())
        return subprocess.run(
            [program, *command, folder / name],
            capture_output=True,
            text=True,
            env={"SYSTEMD_UNIT_PATH": f"{folder}:", "PATH": "/usr/bin:/bin"},
            timeout=60,
            check=False,
        )

    return analyze


@pytest.mark.parametrize("name", [*NAMES, "asyncrl.target"])
def test_a_unit_is_clean(analyze, name):
    done = analyze(name, "verify", "--man=no")
    assert [line for line in done.stderr.splitlines() if "asyncrl" in line] == []


def test_a_mistake_in_a_unit_is_found(analyze):
    """Otherwise the test above might pass for any file."""
    done = analyze(NAMES[1], "verify", "--man=no", replace=("NoNewPrivileges", "NoNewPriviledges"))
    assert "Unknown key" in done.stderr


def test_the_page_tells_the_exposures_that_are_tested():
    broker, reward = MOST_EXPOSED.values()
    told = f"at most {broker} (broker), {OTHERS_EXPOSED} (trainer, rollout, spool) and {reward} (reward"
    assert told in (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_is_exposed_little(analyze, name):
    threshold = MOST_EXPOSED.get(name, OTHERS_EXPOSED)
    done = analyze(name, "security", "--offline=true", f"--threshold={threshold * 10:.0f}")
    assert done.returncode == 0, done.stdout[-400:]


@pytest.mark.parametrize("name", SEVERAL)
def test_a_unit_of_a_run_on_several_machines_is_clean_and_exposed_little_more(analyze, name):
    texts = render("systemd", SEVERAL[name])
    done = analyze(name, "verify", "--man=no", texts=texts)
    assert [line for line in done.stderr.splitlines() if "asyncrl" in line] == []
    threshold = MOST_EXPOSED.get(name, OTHERS_EXPOSED) + 0.3  # no filter of addresses
    done = analyze(name, "security", "--offline=true", f"--threshold={threshold * 10:.0f}")
    assert done.returncode == 0, done.stdout[-400:]
