"""A run whose reward function is hostile: it goes on, or ends with one sentence that names the cause."""

from pathlib import Path
from unicodedata import category

import pytest
from click.testing import CliRunner

from asyncrl.cli.main import main
from asyncrl.workers import folders

LEFT_BEHIND = "sleep\x00424243\x00"
ALWAYS_HANGS = """
import time

def score(sample):
    time.sleep(3600)
"""
PRINTS_AND_LEAVES_DAEMONS = """
import os, subprocess

def score(sample):
    subprocess.Popen("sleep 424243 & setsid sleep 424243 &", shell=True).wait()
    os.write(1, b"x" * (1 << 20))
    return float(sample.completion.count("a") % 3)
"""
ESCAPES = r"""
ACTS = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m \x9b31m \u202e "

def score(sample):
    print(ACTS)
    if sample.completion.count("a") % 2:
        raise ValueError(ACTS + sample.completion)
    return {"score": float(len(sample.completion) % 3), **({ACTS: 1.0} if len(sample.completion) % 5 == 0 else {})}
"""


def function(folder: Path, text: str) -> str:
    path = folder / "hostile.py"
    path.write_text(text)
    return f"reward.function={path}:score"


def left_behind() -> list[Path]:
    found = []
    for path in folders.PROC.glob("[0-9]*/cmdline"):
        try:
            found += [path] if path.read_text() == LEFT_BEHIND else []
        except OSError:
            continue
    return found


@pytest.mark.long("waits for each of its timeouts")
def test_a_reward_that_always_hangs_ends_the_run_with_its_cause(start_run, tmp_path: Path) -> None:
    run = start_run(function(tmp_path, ALWAYS_HANGS), "reward.timeout_s=0.5", "reward.workers=2").end()

    assert run.code == 1
    assert "groups in a row were dropped and none became complete" in run.output + run.errors
    assert "the function hung: no verdict within 0.5 s" in run.output + run.errors


@pytest.mark.slow("whole runs of real processes")
def test_a_reward_that_prints_and_leaves_daemons_neither_fills_the_disk_nor_the_machine(
    start_run, tmp_path: Path
) -> None:
    run = start_run(function(tmp_path, PRINTS_AND_LEAVES_DAEMONS), steps=3).end()

    assert run.code == 0, run.errors
    assert left_behind() == []
    logs = sum(path.stat().st_size for path in run.directory.path.rglob("*.log"))
    assert logs < 1 << 20
    assert any("bytes of output were cut" in path.read_text() for path in run.directory.path.rglob("*.log"))


@pytest.mark.long("one more whole run")
def test_a_reward_that_writes_escape_sequences_commands_no_terminal_and_no_page(start_run, tmp_path: Path) -> None:
    run = start_run(function(tmp_path, ESCAPES), steps=3).end()

    path = str(run.directory.path)
    printed = [
        CliRunner().invoke(main, [*command, path]).output
        for command in (["dead-letters"], ["audit"], ["events"], ["status"], ["logs"], ["why"], ["samples"])
    ]
    files = (run.directory.events, run.directory.report, run.directory.summary, *run.directory.logs.glob("*.log"))
    texts = [run.output, run.errors, *printed, *(file.read_text() for file in files)]
    acting = [{letter for letter in text if category(letter) in {"Cc", "Cf", "Zl", "Zp"}} - {"\n"} for text in texts]
    assert acting == [set()] * len(texts)
    assert "OWNED" in run.output + run.errors
    assert any("OWNED" in text for text in printed)
