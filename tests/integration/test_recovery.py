"""A run with killed processes trains every step once, on the batch of the data order."""

from random import Random

import pytest

from asyncrl import failpoints
from asyncrl.runtime.process import PLACES
from tests.integration.conftest import TWO_ROLLOUTS, ToyRun

pytestmark = pytest.mark.slow("whole runs of real processes")

STEPS = 16
CHECKPOINTS = "checkpoint.every_steps=4"


def assert_complete(run: ToyRun) -> None:
    """The run finished, and ledger and metrics have every step once."""
    assert run.end().code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", STEPS)
    run.assert_adds_up()
    lines = run.directory.read_metrics()
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert run.summary.trained_tokens == sum(line["tokens"] for line in lines)
    assert run.summary.held_out_accuracy is not None


def exits(run: ToyRun) -> list[tuple[str, str]]:
    """Node and cause of each ``node.exited`` event."""
    return [(event["node"], event["cause"]) for event in run.events if event["event"] == "node.exited"]


def test_a_killed_trainer_continues_from_its_checkpoint_with_the_same_batches(start_run):
    run = start_run(CHECKPOINTS, steps=STEPS)
    run.until(lambda: any(event["event"] == "checkpoint.written" for event in run.events))
    run.kill_node("trainer-0")
    assert_complete(run)
    assert exits(run) == [("trainer-0", "was killed by SIGKILL")]
    (log,) = run.directory.logs.glob("trainer-0.log")
    assert '"event": "trainer.resumed"' in log.read_text()


@pytest.mark.long("search, report and screen are tested each by themselves")
def test_a_damaged_checkpoint_is_told_on_the_screen_and_the_run_goes_on_from_the_one_before(start_run):
    run = start_run(CHECKPOINTS, steps=STEPS)
    run.until(lambda: sum(event["event"] == "checkpoint.written" for event in run.events) >= 2)
    run.kill_all()
    older, newer = sorted(run.directory.checkpoints.glob("step_*"))[-2:]
    weights = newer / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    run.resume()
    assert_complete(run)
    assert f"checkpoint {newer} is damaged: {weights} differs from what was written: expected sha256 " in run.output
    assert f"the trainer goes on from {older}\n" in run.output
    assert [event["path"] for event in run.events if event["event"] == "trainer.resumed"] == [str(older)]
    assert run.audit().problems == []


FAILS = """
from asyncrl.algo.advantages import grpo
from asyncrl.errors import AsyncrlError

def fails_at_the_third_batch(outcomes):
    if any(outcome.group_id == 17 for outcome in outcomes):
        raise AsyncrlError(f"{len(outcomes)} outcomes cannot be compared")
    return grpo(outcomes)
"""


def test_a_trainer_that_fails_twice_at_a_step_ends_the_run_which_goes_on_without_the_batch(start_run, tmp_path):
    estimator = tmp_path / "estimator.py"
    estimator.write_text(FAILS)
    run = start_run(
        "checkpoint.every_steps=1",
        "schedule.groups_per_step=8",
        f"algorithm.advantage={estimator}:fails_at_the_third_batch",
        steps=STEPS,
    )
    cause = "the trainer failed twice at step 3 for the same reason: AsyncrlError: "
    assert run.end().code == 1, (run.errors, run.output)
    assert cause in run.errors
    assert (run.summary.status, run.summary.steps) == ("failed", 2)
    assert [event["step"] for event in run.events if event["event"] == "step.failed"] == [2, 2]

    run.resume("--skip-step", "3")
    assert run.end().code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", STEPS)
    audit = run.audit()
    assert (audit.problems, audit.untrained) == ([], {"run.skip_steps has step 3": 8})


@pytest.mark.long("a trainer of several ranks")
def test_all_ranks_of_the_trainer_restart_from_the_checkpoint_when_one_is_killed(start_run):
    run = start_run(CHECKPOINTS, "trainer.ranks=2", steps=STEPS)
    run.until(lambda: run.steps_done() >= 6)
    run.kill_node("trainer-0-rank-1")
    run.until(lambda: len(exits(run)) == 1 and run.steps_done() >= 9)
    run.kill_node("trainer-0")
    assert_complete(run)
    (first, second) = exits(run)
    assert first == ("trainer-0", "exited with 75: trainer-0-rank-1 was killed by SIGKILL")
    assert second == ("trainer-0", "was killed by SIGKILL")


def test_a_killed_broker_restarts_at_its_old_address(start_run):
    run = start_run(CHECKPOINTS, steps=STEPS)
    run.until(lambda: run.steps_done() >= 6)
    run.kill_node("broker-0")
    assert_complete(run)
    assert ("broker-0", "was killed by SIGKILL") in exits(run)
    assert run.summary.base_accuracy is not None, "measured before it died"
    kinds = [event["event"] for event in run.events]
    assert kinds.count("run.started") == kinds.count("run.resumed") == 1


@pytest.mark.long("the failpoint of a reward kills one, too")
def test_a_killed_reward_process_is_replaced(start_run):
    run = start_run(steps=STEPS)
    run.until(lambda: run.steps_done() >= 2)
    run.kill_node("reward-0")
    assert_complete(run)
    assert exits(run) == [("reward-0", "was killed by SIGKILL")]


def test_a_run_can_be_resumed_after_all_its_processes_were_killed(start_run):
    run = start_run(CHECKPOINTS, steps=STEPS)
    run.until(lambda: run.steps_done() >= 6)
    run.kill_all()
    run.resume()
    assert_complete(run)


@pytest.mark.long("each failpoint kills one above, and benches kill at random")
def test_the_records_of_a_run_are_consistent_after_many_kills(start_run):
    run = start_run(TWO_ROLLOUTS, CHECKPOINTS, "supervisor.max_restarts=20", steps=STEPS)
    for step, node in ((1, "broker-0"), (3, "trainer-0"), (5, "rollout-1"), (8, "broker-0"), (9, "trainer-0")):
        run.until(lambda step=step: run.steps_done() >= step)
        run.kill_node(node)
    assert_complete(run)


def test_an_audit_of_a_run_that_goes_on_finds_no_problem(start_run):
    run = start_run(CHECKPOINTS, "broker.segment_bytes=20000", steps=STEPS)
    run.until(lambda: run.steps_done() >= 1)
    while run.steps_done() < STEPS - 2:
        assert run.audit().problems == []
    assert_complete(run)


OFTEN = ("reward.judged",)
"""Of the role that no other test of CI kills."""


@pytest.mark.parametrize(
    "place",
    [*OFTEN, *(pytest.param(place, marks=pytest.mark.long("another place")) for place in PLACES if place not in OFTEN)],
)
def test_death_at_any_failpoint_loses_and_repeats_no_step(start_run, tmp_path, place):
    passes = 20 if place.startswith(("broker", "spool", "rollout.generated")) else 2
    passes = 5 if place == "broker.step_recorded" else passes
    plan = f"{place}:{passes}:{tmp_path / 'died'}"
    run = start_run(CHECKPOINTS, steps=STEPS, environment={failpoints.VARIABLE: plan})
    assert_complete(run)
    assert (tmp_path / "died").exists()
    assert {cause for _, cause in exits(run)} >= {"was killed by SIGKILL"}


@pytest.mark.long("a complete run again")
def test_a_complete_run_is_not_resumed(start_run):
    run = start_run(steps=1).end()
    run.resume()
    run.end()
    assert run.code == 0
    assert "is complete (1 steps): there is nothing to resume" in run.output


@pytest.mark.long("a complete run again")
def test_a_complete_run_that_lost_its_summary_is_complete_at_once(start_run):
    run = start_run(steps=2).end()
    run.directory.summary.unlink()
    (run.directory.samples / "step_000001.parquet").unlink()
    run.resume()
    assert run.end().code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", 2)
    assert (run.directory.samples / "step_000001.parquet").exists()
    assert run.audit().problems == []
    assert not run.happened("node.joined", "trainer-0")[1:], "no node was started again"


@pytest.mark.long("a complete run again")
def test_a_complete_run_can_be_extended(start_run):
    run = start_run(steps=3).end()
    assert run.summary.steps == 3
    run.resume("--steps", str(STEPS))
    assert_complete(run)


@pytest.mark.long("two minutes; the same batches after a kill are shown above")
def test_at_staleness_0_a_killed_run_ends_with_identical_weights(start_run):
    # One completion at a time: the others in a decoding batch depend on timing and change the last bits of a log-prob.
    settings = ("staleness=0", "rollout.replicas=1", "rollout.slots=1", "checkpoint.every_steps=3")

    def weights(*kills: tuple[int, str]) -> bytes:
        run = start_run(*settings, steps=STEPS)
        for step, node in kills:
            run.until(lambda step=step: run.steps_done() >= step)
            if node == "all":
                run.kill_all()
                run.resume()
            else:
                run.kill_node(node)
        assert_complete(run)
        return (run.directory.checkpoints / f"step_{STEPS:06d}" / "model.safetensors").read_bytes()

    dice = Random()
    steps = sorted(dice.sample(range(1, STEPS - 2), 5))
    kills = [(step, dice.choice(["trainer-0", "broker-0", "rollout-0", "all"])) for step in steps]

    assert weights(*kills) == weights(), f"killed at {kills}"
