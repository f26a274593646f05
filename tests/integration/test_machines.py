"""
A trainer over several machines trains what one would, names a machine that is lost, and goes on.

`asyncrl run` starts the first machine, `asyncrl-node` the second: one computer with two nodes that share nothing but
the broker's address, and a run directory that both can see.
"""

import os
import re
import signal
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from asyncrl import failpoints
from asyncrl.runtime.process import SHARD_PLACES
from tests.integration.conftest import TWO_ROLLOUTS, ToyRun
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("whole runs of real processes")

STEPS = 16
SETTINGS = ("trainer.nodes=2", "trainer.ranks=2", "checkpoint.every_steps=2", "sampling.max_tokens=24")
SECOND = "trainer-b"


def assert_complete(run: ToyRun, steps: int = STEPS) -> None:
    """The run finished, each step was trained once, and every file agrees with the ledger."""
    assert run.end().code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", steps)
    run.assert_adds_up()
    assert run.audit().problems == []


def causes(run: ToyRun) -> list[str]:
    """Reason of each end of a group, without the name of this computer."""
    reasons = [event["cause"] for event in run.events if event["event"] == "trainer.disbanded"]
    return [re.sub(r" on [^ ]+ ", " on HOST ", reason) for reason in reasons]


def machines_of_groups(run: ToyRun) -> list[list[str]]:
    """Machines of each group of the trainer so far."""
    return [event["machines"] for event in run.events if event["event"] == "trainer.assembled"]


def signal_all(run: ToyRun, node: "subprocess.Popen[str]", number: int) -> None:
    """Send a signal to every process of a machine."""
    for pid in run.processes(node):
        os.kill(pid, number)


def start_second(run: ToyRun, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start the second machine once the first one has joined, which is then the first of the group."""
    run.until(lambda: bool(run.happened("node.joined", "trainer-0")))
    return run.start_node("trainer", SECOND, environment=environment)


@pytest.mark.long("minutes")
def test_two_machines_of_two_ranks_train_what_one_of_four_and_one_process_do(start_run):
    """With this eps, AdamW's first steps are no signs of gradients, which rounding may flip where they are near 0."""
    sets = ("staleness=0", "rollout.replicas=1", "rollout.slots=1", "trainer.eps=0.01", "sampling.max_tokens=24")

    def trained(nodes: int, ranks: int, sharing: int = 1) -> tuple[list[float], dict[str, torch.Tensor]]:
        places = f"trainer.nodes={nodes}", f"trainer.ranks={ranks}", f"trainer.sequence_parallel={sharing}"
        run = start_run(*sets, *places, steps=4)
        if nodes > 1:
            start_second(run)
        assert_complete(run, 4)
        losses = [line["loss"] for line in run.directory.read_metrics()]
        files = (run.directory.checkpoints / "step_000004").glob("model*.safetensors")
        return losses, {name: weight for file in files for name, weight in load_file(file).items()}

    losses, weights = trained(1, 1)
    assert max(map(abs, losses)) > 1e-3
    for nodes, ranks, sharing in ((1, 4, 1), (2, 2, 1), (2, 2, 2)):
        other_losses, other_weights = trained(nodes, ranks, sharing)
        assert other_losses == pytest.approx(losses, abs=1e-5)
        assert other_weights.keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(other_weights[name], weight, rtol=0.0, atol=1e-5)


@pytest.mark.long("three minutes")
def test_a_rank_that_dies_in_load_step_publish_or_checkpoint_is_named_and_the_run_goes_on(start_run, tmp_path):
    run = start_run(*SETTINGS, steps=STEPS)
    for count, place in enumerate(SHARD_PLACES, start=1):
        plan = {failpoints.VARIABLE: f"{place}:1:{tmp_path / place}"}
        second = start_second(run, plan)
        run.until(lambda count=count: len(causes(run)) == count)
        output, errors = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 75, (output, errors)
        assert re.search(f"^asyncrl: {SECOND}-rank-[23] was killed by SIGKILL$", errors, re.MULTILINE)
    start_second(run)
    assert_complete(run)
    pattern = rf"{SECOND} on HOST \(ranks 2 to 3\) left: RankDied: {SECOND}-rank-[23] was killed by SIGKILL"
    assert all(re.fullmatch(pattern, cause) for cause in causes(run)), causes(run)
    assert not run.happened("node.exited", "trainer-0"), "the first machine joined again, without a restart"


@pytest.mark.long("minutes")
def test_a_silent_machine_and_a_killed_one_are_named_and_their_group_forms_again(start_run):
    run = start_run(*SETTINGS, steps=STEPS)
    second = start_second(run)
    run.until(lambda: run.steps_done() >= 3)
    signal_all(run, second, signal.SIGSTOP)
    run.until(lambda: len(causes(run)) == 1)
    signal_all(run, second, signal.SIGKILL)
    start_second(run)
    run.until(lambda: len(machines_of_groups(run)) == 2 and run.steps_done() >= 6)
    run.kill_node("trainer-0")
    assert_complete(run)
    assert causes(run) == [
        f"{SECOND} on HOST (ranks 2 to 3) was lost: silent for 10 s",
        "trainer-0 on HOST (ranks 0 to 1) was lost: was killed by SIGKILL",
    ]
    assert len(machines_of_groups(run)) == 3


@pytest.mark.long("a minute")
def test_a_machine_that_is_told_to_stop_leaves_a_checkpoint_of_every_step_behind(start_run):
    run = start_run(*SETTINGS, "checkpoint.every_steps=1000", steps=STEPS)
    second = start_second(run)
    run.until(lambda: run.steps_done() >= 3)
    second.terminate()
    output, errors = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, (output, errors)
    (saved,) = run.directory.checkpoints.glob("step_*")
    assert saved.name == f"step_{run.steps_done():06d}"
    start_second(run)
    assert_complete(run)
    assert causes(run) == [f"{SECOND} on HOST (ranks 2 to 3) is to stop, and a checkpoint has just been written"]


@pytest.mark.long("minutes")
def test_fewer_machines_go_on_until_the_missing_one_has_come(start_run):
    sets = ("trainer.min_nodes=1", "trainer.wait_s=5", "broker.node_ttl_s=60")
    run = start_run(*SETTINGS, TWO_ROLLOUTS, *sets, steps=STEPS)
    run.until(lambda: run.steps_done() >= 2)
    rollouts = [run.pid_of(name) for name in ("rollout-0", "rollout-1")]
    for pid in rollouts:  # Or the run would be over before the second machine has come.
        os.kill(pid, signal.SIGSTOP)
    start_second(run)
    run.until(lambda: bool(run.happened("node.joined", SECOND)))
    for pid in rollouts:
        os.kill(pid, signal.SIGCONT)
    run.until(lambda: len(machines_of_groups(run)[-1]) == 2)
    assert_complete(run)
    assert len(machines_of_groups(run)[0]) == 1
    assert set(causes(run)) == {"a missing machine of the trainer has come, and a checkpoint has just been written"}
