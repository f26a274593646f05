"""A judge that others serve gives the rewards of a run, which waits for it while it is away."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from tests.integration.conftest import ROOT, StartRun, ToyRun
from tests.patience import PATIENCE_S
from tests.served import judge
from tests.served.judge import KEY, MODEL, rated

JUDGED = Path(judge.__file__)


class JudgeProcess:
    """A judge on one port, whatever process it is."""

    def __init__(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(JUDGED), str(self.port)])
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the judge does not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def judged() -> Iterator[JudgeProcess]:
    process = JudgeProcess()
    yield process
    process.kill()


@pytest.fixture
def function(tmp_path: Path) -> str:
    shutil.copy(ROOT / "examples" / "judge_reward.py", tmp_path)
    return f"{tmp_path / 'judge_reward.py'}:score"


def settings(judged: JudgeProcess, function: str) -> list[str]:
    return [
        f"reward.function={function}",
        "reward.timeout_s=301",
        f"models.judge.url=http://127.0.0.1:{judged.port}/v1",
        f"models.judge.model={MODEL}",
        "models.judge.key_env=JUDGE_KEY",
        "models.judge.deadline_s=300",
        "evaluation.at_start=false",
        "evaluation.at_end=false",
    ]


def assert_rewards_are_the_judges(run: ToyRun) -> None:
    files = sorted(run.directory.samples.glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert rows
    assert [row["reward"] for row in rows] == [rated(row["completion"]) / 10 for row in rows]
    assert {row["reward"] for row in rows} == {0.0, 1.0}


@pytest.mark.slow("trains with processes")
def test_a_run_waits_for_a_judge_that_is_away_and_goes_on(
    judged: JudgeProcess, function: str, start_run: StartRun
) -> None:
    run = start_run(*settings(judged, function), steps=6, environment={"JUDGE_KEY": KEY})
    run.until(lambda: run.directory.ledger.exists() and run.has_sampled_all())
    assert run.steps_done() == 0, "nothing can be trained without a reward"
    judged.start()
    run.until(lambda: run.steps_done() >= 2)
    judged.kill()
    run.until(run.has_sampled_all)
    judged.start()
    run.end()
    assert run.code == 0, run.errors
    run.assert_adds_up()
    assert_rewards_are_the_judges(run)
    assert run.summary.failed == {}
    lines = run.directory.read_metrics()
    totals = {key: sum(line[f"models/judge.{key}"] for line in lines) for key in ("requests", "repeated", "tokens")}
    assert min(totals.values()) > 0
    assert "model 'judge': http://127.0.0.1" in run.output + run.errors, "a remark at the start"
    for path in run.directory.path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert (run.directory.models / "reward-0" / "judge.sqlite").stat().st_size > 0


@pytest.mark.slow("starts a process")
def test_a_run_without_the_key_is_refused_before_it_starts(
    judged: JudgeProcess, function: str, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    run = start_run(*settings(judged, function)).end()
    assert run.code == 78
    assert "models.judge.key_env names the variable JUDGE_KEY, which is not set in this process" in run.errors
    assert not run.directory.path.exists()
