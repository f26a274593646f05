"""Every script of bench/ runs, at the tiny sizes of ``--smoke``, on the run files that we ship."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_A_DEVICE = {"gpu", "roof"}
"""They have tests of their own."""
OF_A_CHECKOUT = {"verl_scripts"}
"""They read the launch scripts of another repository."""
BY_README = {"loop", "trainer_step", "messages", "weights", "gateway", "recovery", "chaos"}
"""They are run by readme.py, and not once more."""
SCRIPTS = {
    path.stem
    for path in (ROOT / "bench").glob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8") and path.stem not in OF_A_DEVICE | OF_A_CHECKOUT
}
PATIENCE_S = 600.0
"""Of one script on a busy machine; alone it takes some seconds."""

pytestmark = pytest.mark.slow("benches are programs that start others")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory of all scripts, which share the tiny models that they make in its ``cache``."""
    return tmp_path_factory.mktemp("bench")


def smoked(name: str, folder: Path, patience_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--smoke"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience_s, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in folder.iterdir()} <= {"cache"}, "it leaves files"
    return done


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("name", sorted(SCRIPTS - BY_README - {"readme"}))
def test_a_bench_runs_with_smoke_and_prints_json_lines(name: str, folder: Path) -> None:
    lines = [json.loads(line) for line in smoked(name, folder).stdout.splitlines() if line.startswith("{")]

    assert {line["bench"] for line in lines} == {name}


@pytest.mark.timeout(len(BY_README) * PATIENCE_S)
def test_the_table_of_readme_is_printed_whole_by_the_benches_that_measure_it(folder: Path) -> None:
    done = smoked("readme", folder, len(BY_README) * PATIENCE_S)

    head, line, *rows = done.stdout.splitlines()
    assert (head, line) == ("| measurement | asyncrl | peer |", "|---|---|---|")
    assert all(re.fullmatch(r"\| [^|]+ \| [^|]*\d[^|]* \| [^|]* \|", row) for row in rows), rows
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Numbers")[2].partition("\n## ")[0]
    assert len(rows) == sum(row.startswith("| ") for row in shown.splitlines()) - 1
    assert set(re.findall(r"^\$ python bench/(\w+)\.py", done.stderr, re.MULTILINE)) == BY_README
