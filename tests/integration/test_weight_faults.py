"""A process that fails during a weight transfer is reported and removed; the others continue."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.conftest import ToyRun

FAULTY_ROLLOUT = Path(__file__).with_name("faulty_rollout.py")
DEADLINE_S, TTL_S = 3.0, 8.0
SLACK_S = 4.0
"""Seconds of tolerance for timers and messages on a busy machine."""
GOES_ON_S = 5.0
"""Seconds within which the others go on without a frozen rollout."""
LEAVE_S = 60.0
STEPS = 100_000
"""Number of steps; more than are done before the tests end."""
BUCKET_BYTES = 256 << 10
SETTINGS = (
    *(f"weights.deadline_s={DEADLINE_S}", f"broker.node_ttl_s={TTL_S}", "checkpoint.every_steps=20"),
    *("evaluation.every_versions=0", "evaluation.at_start=false", "evaluation.at_end=false"),
    *("rollout.replicas=1", "sampling.max_tokens=16"),
)
GOOD = "rollout-0"

pytestmark = pytest.mark.slow("whole runs of real processes")


@pytest.fixture(scope="module")
def run(start_shared_run: Callable[..., ToyRun], toy: Path, tmp_path_factory: pytest.TempPathFactory) -> ToyRun:
    """A run with a model of 30 MB in more than 100 buckets: a version exceeds the socket buffers."""
    path = tmp_path_factory.mktemp("large") / "model"
    shutil.copytree(toy / "model", path)
    make_larger(path)
    run = start_shared_run(*SETTINGS, f"weights.bucket_bytes={BUCKET_BYTES}", f'model.path="{path}"', steps=STEPS)
    run.until(lambda: run.steps_done() >= 1)
    return run


def make_larger(path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 7, "layer_types": None}
    Qwen3ForCausalLM(Qwen3Config(**Qwen3Config.from_pretrained(path).to_dict() | sizes)).save_pretrained(path)


@pytest.fixture
def start_faulty():
    """``start_faulty(run, fault, name)`` starts another rollout, which ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(run: ToyRun, fault: str, name: str) -> "subprocess.Popen[str]":
        address = run.directory.address.read_text().strip()
        options = ["--role", "rollout", "--name", name, "--broker", address]
        processes.append(run.beside(str(FAULTY_ROLLOUT), fault, *options))
        return processes[-1]

    yield start
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(LEAVE_S)


@pytest.fixture
def freeze(start_faulty):
    """``freeze(run, name)`` starts a rollout that stops after a few buckets of a transfer to several receivers."""

    def freeze(run: ToyRun, name: str) -> int:
        process = start_faulty(run, "freezes", name)
        run.until(lambda: process.poll() is None and is_stopped(process.pid))
        return process.pid

    return freeze


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def at_s(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(str(event["at"])).timestamp()


def live_times_since(run: ToyRun, since_s: float) -> list[float]:
    """Times at which versions went live."""
    return [at_s(event) for event in run.events if event["event"] == "version.live" and at_s(event) > since_s]


def live_version(run: ToyRun) -> int:
    return max(int(str(event["policy_version"])) for event in run.events if event["event"] == "version.live")


def causes(run: ToyRun, kind: str, name: str) -> list[str]:
    """Causes in the events of one kind about a node."""
    return [str(event["cause"]) for event in run.happened(kind, name)]


def assert_only_lost(run: ToyRun, name: str) -> None:
    """Only ``name`` was lost, for the limit that it exceeded first; the others need not wait for that."""
    run.until(lambda: bool(causes(run, "node.lost", name)))
    (cause,) = causes(run, "node.lost", name)
    assert cause in (f"silent for {TTL_S:g} s", f"did not finish a weight transfer within {2 * DEADLINE_S:g} s")


def assert_continues(run: ToyRun, fault_s: float) -> None:
    """The run continues within the limits of a transfer and of a silent node, and its ledger is consistent."""
    run.until(lambda: len(live_times_since(run, fault_s)) >= 3)
    assert live_times_since(run, fault_s)[0] - fault_s < DEADLINE_S + TTL_S + SLACK_S
    assert not run.happened("node.lost", GOOD)
    assert run.audit().problems == []


def assert_rejoins_with_current_weights(run: ToyRun, name: str) -> None:
    """The removed node joins again and samples with newer versions."""
    version = live_version(run)
    run.until(lambda: len(run.happened("node.joined", name)) == 2)
    run.until(lambda: any(row["oldest_version"] > version for row in samples_of(run, name)))
    assert run.audit().problems == []


def samples_of(run: ToyRun, name: str) -> list[dict[str, Any]]:
    """Trained trajectories of a node."""
    files = sorted(run.directory.samples.glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=["node", "oldest_version"]).to_pylist()]
    return [row for row in rows if row["node"] == name]


# ── the socket buffers hold a whole version ─────────────────────────────────────────────────


@pytest.mark.long("one that is killed is lost in the same way")
def test_a_rollout_that_freezes_after_the_trainer_sent_everything_is_lost_and_joins_again(start_run, freeze):
    run = start_run(*SETTINGS, "weights.bucket_bytes=4096", steps=STEPS)
    run.until(lambda: run.steps_done() >= 1)
    frozen = freeze(run, "frozen")
    fault_s = time.time()
    assert_continues(run, fault_s)
    assert_only_lost(run, "frozen")
    os.kill(frozen, signal.SIGCONT)
    assert_rejoins_with_current_weights(run, "frozen")
    run.kill()


# ── the socket buffers hold part of a version, so the trainer waits ─────────────────────────


def test_a_rollout_killed_during_a_transfer_is_lost_and_the_others_continue(run, freeze):
    killed = freeze(run, "killed")
    fault_s = time.time()
    os.kill(killed, signal.SIGKILL)
    assert_continues(run, fault_s)
    assert_only_lost(run, "killed")
    assert all("killed" in cause for cause in causes(run, "transfer.failed", GOOD))


@pytest.mark.long("one that is killed is lost in the same way")
def test_a_rollout_that_freezes_during_a_transfer_is_lost_and_joins_again_with_current_weights(run, freeze):
    frozen = freeze(run, "frozen")
    fault_s = time.time()
    assert_continues(run, fault_s)
    assert_only_lost(run, "frozen")
    (cause,) = [cause for cause in causes(run, "transfer.failed", "trainer-0") if "frozen" in cause]
    assert f"with {GOOD}, frozen in transfer group" in cause
    assert cause.endswith("failed: frozen was silent")
    assert live_times_since(run, fault_s)[0] - fault_s < GOES_ON_S
    os.kill(frozen, signal.SIGCONT)
    assert_rejoins_with_current_weights(run, "frozen")


@pytest.mark.long("waits")
def test_a_rollout_that_freezes_briefly_is_not_lost(run, freeze):
    frozen = freeze(run, "paused")
    fault_s = time.time()
    time.sleep(DEADLINE_S / 3)
    os.kill(frozen, signal.SIGCONT)
    assert_continues(run, fault_s)
    assert not run.happened("node.lost", "paused")
    assert not [event for event in run.events if event["event"] == "transfer.failed" and at_s(event) > fault_s]


@pytest.mark.long("test_recovery.py kills trainers")
def test_a_trainer_killed_during_a_transfer_restarts_and_both_rollouts_continue(run, freeze):
    frozen = freeze(run, "bystander")
    fault_s = time.time()
    run.kill_node("trainer-0")
    run.until(lambda: run.happened("node.lost", "trainer-0"))
    os.kill(frozen, signal.SIGCONT)
    run.until(lambda: live_times_since(run, fault_s))
    assert causes(run, "node.exited", "trainer-0") == ["was killed by SIGKILL"]
    for name in (GOOD, "bystander"):
        (cause,) = [str(e["cause"]) for e in run.happened("transfer.failed", name) if at_s(e) > fault_s]
        assert "with trainer-0, " in cause
        assert re.search("Connection (closed|reset) by peer", cause)
        assert not run.happened("node.lost", name)
    assert run.audit().problems == []


# ── a rollout that can never receive the weights ────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        "other-shapes",
        *(
            pytest.param(fault, marks=pytest.mark.long("another difference"))
            for fault in ("other-names", "other-buckets")
        ),
    ],
)
def test_a_rollout_with_another_model_is_refused_in_one_sentence(run, start_faulty, fault):
    process = start_faulty(run, fault, fault)
    run.until(lambda: process.poll() is not None)
    assert process.returncode == 78
    (rejected,) = run.happened("node.rejected", fault)
    cause = str(rejected["cause"])
    assert f"{fault} has another model than " in cause
    assert "weight layouts" in cause
    assert process.communicate()[1].splitlines()[-1] == f"asyncrl: {cause}"
    assert_continues(run, at_s(rejected))


@pytest.mark.long("several versions have to fail")
def test_a_rollout_that_receives_only_damaged_versions_is_removed_and_the_others_continue(run, start_faulty):
    start_faulty(run, "damages", "damaged")
    run.until(lambda: run.happened("transfer.failed", "damaged"))
    fault_s = time.time()
    run.until(lambda: run.happened("node.lost", "damaged"))
    assert causes(run, "node.lost", "damaged") == ["could not receive the weights in 5 tries"]
    assert set(causes(run, "transfer.failed", "damaged")) == {"a bit has flipped on its way"}
    assert_continues(run, fault_s)
    assert not samples_of(run, "damaged"), "a rollout without weights samples nothing"
