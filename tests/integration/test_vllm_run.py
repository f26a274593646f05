"""A run with vLLM loses nothing when a process is killed, and decodes with the trainer's weights if it fetches them."""

import os
import select
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from asyncrl.cli.inspect import read_audit
from tests.conftest import make_model
from tests.integration.node_processes import Nodes

pytestmark = pytest.mark.slow("whole runs of real processes")

VLLM = (
    *('rollout.engine="vllm"', "rollout.replicas=1", "rollout.vllm.enforce_eager=true"),
    "rollout.vllm.kv_cache_bytes=33554432",
)
ENGINE_CORE = "VLLM::EngineCore"
LOADING_S = 300.0
"""Seconds; vLLM needs half a minute of two cores to start, and may have to share them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's model, with a head size that vLLM can decode on a CPU."""
    path = tmp_path_factory.mktemp("toy") / "model"
    make_model(path, head_dim=32)
    return path


@pytest.mark.long("vLLM starts three times")
def test_a_run_continues_after_its_node_or_engine_is_killed_and_no_process_is_left(start_run, model):
    run = start_run(*VLLM, f'model.path="{model}"', "broker.node_ttl_s=4", "evaluation.every_versions=0", steps=100_000)
    run.patience_s = LOADING_S
    run.until(lambda: run.steps_done() >= 2)

    engine = os.pidfd_open(run.pid_of(ENGINE_CORE))
    run.kill_node("rollout-0")
    run.until(lambda: len(run.happened("node.joined", "rollout-0")) == 2)
    assert select.select([engine], [], [], 0)[0], "the engine has ended"
    run.until_next_step()

    run.kill_node(ENGINE_CORE)
    run.until(lambda: len(run.happened("node.joined", "rollout-0")) == 3)
    run.until_next_step()
    run.interrupt()
    run.end()

    (first, second) = [str(event["cause"]) for event in run.happened("node.exited", "rollout-0")]
    assert "killed by SIGKILL" in first
    assert "vLLM's engine core" in second
    assert "died: signal 9" in second
    audit = run.audit()
    assert (audit.problems, audit.skipped, audit.double_trained) == ([], 0, 0)
    assert {row["node"] for row in run.samples()} == {"rollout-0"}


@pytest.mark.long("vLLM starts beside a whole run")
def test_a_run_whose_only_rollout_fetches_its_weights_samples_with_the_trainers(nodes: Nodes, toy: Path, model: Path):
    (nodes.folder / "run.toml").write_text((toy / "toy.toml").read_text())
    settings = (
        "steps=4",
        f'model.path="{model}"',
        "trainer.lr=0.01",
        "evaluation.every_versions=0",
        "data.held_out=''",
    )
    broker, run = nodes.broker("run", *(part for setting in (*VLLM, *settings) for part in ("--set", setting)))
    secret = ("--secret", str(run.path / "secret"))
    others = [nodes.start(role, *secret) for role in ("reward", "trainer")]
    rollout = nodes.start("rollout", *secret, "--weights", "spool")
    _, errors = rollout.communicate(timeout=LOADING_S)

    assert rollout.returncode == 0, errors
    assert [process.wait(60.0) for process in (broker, *others)] == [0] * 3
    audit, summary = read_audit(run.path), run.read_summary()
    assert (audit.problems, audit.skipped, audit.double_trained) == ([], 0, 0)
    assert summary is not None
    assert summary.logprob_gap_max is not None
    assert summary.logprob_gap_max < 1e-4, "a step of this size moves log-probs a thousand times further"
    assert len([event for event in run.read_events() if event["event"] == "version.uploaded"]) >= 3
