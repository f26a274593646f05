"""The acceptance of a GPU, in small on the CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = {"versions", "copy", "engine, tiny, 4 completions", "step, tiny", "quickstart, 2 steps", "profile, decode"}


@pytest.mark.slow("benches are programs that start others")
def test_the_acceptance_runs_where_asyncrl_is_not_installed(tmp_path: Path) -> None:
    """Packages are on the caller's path alone, and without ``site`` no installation of asyncrl is found."""
    for name in ("asyncrl", "bench", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    packages = os.pathsep.join(part for part in sys.path if part.endswith("-packages"))
    command = [sys.executable, "-S", "-P", str(tmp_path / "bench" / "gpu.py"), "--device", "cpu", "--smoke"]
    command += ["--cases", "machine,engine,step-0.6b,quickstart,profile,groups,attention,experts"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--patience", "5"],
        env=os.environ | {"PYTHONPATH": packages},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in (tmp_path / "out" / "gpu.jsonl").read_text().splitlines()]
    logs = "".join(log.read_text()[-2000:] for log in (tmp_path / "out").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert [line for line in lines if "failed" in line] == []
    assert {line["case"] for line in lines} >= CASES
    assert [line["case"] for line in lines if "skipped" in line] == ["groups"], "it needs a GPU"
    assert "quickstart" in done.stdout.split("\ncases\n")[1], "the table comes last"
