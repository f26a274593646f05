"""The shipped supervisord file: the installer's own, accepted by supervisord, and true to the command line."""

import os
import re
import shlex
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from asyncrl.cli.node import main
from asyncrl.errors import ToldToLeave
from asyncrl.tools.services.render import ROLES, SUPERVISORD, render

ROOT = Path(__file__).parents[2]
FILE = ROOT / "conf" / "supervisord" / "asyncrl.conf"
BIN = Path(sys.executable).parent


def programs() -> dict[str, dict[str, str]]:
    parser = RawConfigParser(inline_comment_prefixes=(";",))
    parser.read(FILE)
    return {name.removeprefix("program:"): dict(parser[name]) for name in parser if name.startswith("program:")}


def test_the_file_is_the_one_that_the_installer_writes():
    files = [path for path in FILE.parent.rglob("*") if path.is_file()]
    written = {str(path.relative_to(FILE.parent)): path.read_text() for path in files}
    assert render("supervisord", SUPERVISORD) == written


def test_every_role_is_a_program():
    assert tuple(programs()) == ROLES


@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_a_program_exists(role):
    program, *words = shlex.split(programs()[role]["command"])
    assert program.endswith("/asyncrl-node")
    assert words[:2] == ["--role", role]
    assert {word for word in words if word.startswith("--")} <= {o for parameter in main.params for o in parameter.opts}


@pytest.mark.parametrize("role", ROLES)
def test_a_program_is_restarted_for_ever_unless_its_exit_code_is_final(role):
    """With startsecs above 0, supervisord gives up after some kills in the start, and restarts after final codes."""
    settings = programs()[role]
    documented = re.findall(r"(?m)^\| (\d+) \|", (ROOT / "docs" / "operations.md").read_text())
    codes = settings["exitcodes"].split(",")
    assert (settings["autorestart"], settings["startsecs"]) == ("unexpected", "0")
    assert set(codes) <= set(documented)
    assert ("1" in codes) == (role == "broker")
    assert {"0", "74", "78"} <= set(codes)
    assert str(ToldToLeave.exit_code) not in codes, "a signal of somebody else than supervisord"


def test_without_its_variables_supervisord_does_not_start(tmp_path):
    """Otherwise a run would start with half of its settings."""
    pytest.importorskip("supervisor")
    command: list[str | Path] = [BIN / "supervisord", "-c", FILE]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "ENV_ASYNCRL_" in done.stderr
