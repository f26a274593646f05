from msgspec.structs import replace

from asyncrl.cli.operate.status import RunState
from asyncrl.cli.operate.status_lines import file_lines, live_lines, node_lines, state_lines
from asyncrl.messages.supervisor import Incident, NodeStatus, Status
from asyncrl.observe.run_overview import RunOverview

NODES = [
    NodeStatus("supervisor-0", "supervisor", "working"),
    NodeStatus("reward-0", "reward", "waiting", "trajectories", lag_s=0.001, silent_s=0.05),
    NodeStatus("rollout-0", "rollout", "working", "", 18, 8, 62, 1400.0, 0.002, 0.1),
    NodeStatus("trainer-0", "trainer", "waiting", "step 20: 0 of 16 groups complete", tokens_per_s=2420.0),
]
LIVE = Status(
    "quickstart", "running", 19, 40, 18, 32, 32, 8, {"sampling": 16, "grading": 0, "in batch": 16}, NODES, 29.34,
    [Incident("rollout-1 was lost: silent for 10 s", 12.0), Incident("group dropped: zero_variance", 75.0, 3)],
    {"reward": 0.891, "kl": float("nan"), "tokens_per_s": 12_300.0}, 0.797, 0.086,
)  # fmt: skip


def test_a_running_run_is_told_in_80_columns() -> None:
    lines = live_lines(LIVE)
    assert lines == [
        "quickstart: running, step 19 of 40, v18 live, 29.3 s",
        "window     32 of 32 groups of 8 open: 16 sampling, 16 in batch",
        "last step  reward 0.891, tok/s 12.3k, kl nan",
        "held out   8.6 % at first, 79.7 % at the last evaluation",
        "",
        "node       role     state    version  leases  in hand  tok/s  lag ms  beat s",
        "reward-0   reward   waiting                         0              1     0.1",
        "rollout-0  rollout  working      v18       8       62  1.40k       2     0.1",
        "trainer-0  trainer  waiting                            2.42k       0     0.0",
        "",
        "waiting for",
        "  reward-0   trajectories",
        "  trainer-0  step 20: 0 of 16 groups complete",
        "",
        "last incidents",
        "  12.0 s ago           rollout-1 was lost: silent for 10 s",
        "  1 min 15 s ago  3 x  group dropped: zero_variance",
    ]
    assert max(map(len, lines)) <= 80


def test_completions_that_failed_are_told_beside_the_held_out_accuracy() -> None:
    told = "held out   8.6 % at first, 79.7 % at the last evaluation (6 failed)"
    assert live_lines(replace(LIVE, accuracy_failed=6))[3] == told
    assert told.split("first, ")[1] in "".join(file_lines(an_overview(accuracy=0.797, accuracy_failed=6)))


def test_the_metrics_of_a_step_that_do_not_fit_are_left_out_the_least_important_first() -> None:
    metrics = {
        "reward": -123.4567, "accuracy": 0.5, "length_mean": 123456.0, "staleness_mean": 12.0, "tokens_per_s": 9e9,
        "kl": 0.1,
    }  # fmt: skip
    lines = live_lines(Status("run", "running", 1, 2, 0, 4, 0, 2, {}, [], metrics=metrics))
    assert lines[2] == "last step  reward -123.457, batch accuracy 0.500, length 123456, staleness 12.00"
    assert len(lines[2]) <= 80


def test_many_nodes_that_wait_for_the_same_are_one_line() -> None:
    nodes = [NodeStatus(f"r{n}", "rollout", "waiting", "the trainer") for n in range(100)]
    lines = live_lines(Status("run", "running", 0, 1, -1, 4, 0, 2, {}, nodes))
    assert lines[0].endswith("no weights published yet, 0.0 s")
    assert "  r0, r1, r2, r3 and 96 more  the trainer" in lines


def test_a_run_without_nodes_says_so() -> None:
    assert node_lines(NODES[:1]) == ["no node is connected"]


def an_overview(**fields: object) -> RunOverview:
    defaults = {
        "run": "tiny", "status": "stopped", "step": 2, "steps": 4, "reward": None, "base_accuracy": None,
        "accuracy": None,
    }  # fmt: skip
    return RunOverview(**{**defaults, **fields})  # type: ignore[arg-type]


def test_a_run_that_failed_is_told_with_its_cause_and_how_to_resume_it() -> None:
    failed = an_overview(status="failed", cause="out of memory", checkpoint="runs/tiny/checkpoints/step_000002")
    assert state_lines(RunState(files=failed), "runs/tiny") == [
        "tiny: failed, step 2 of 4",
        "cause       out of memory",
        "checkpoint  runs/tiny/checkpoints/step_000002",
        "resume: asyncrl resume runs/tiny",
    ]


def test_a_run_that_is_over_is_told_with_its_duration() -> None:
    over = an_overview(status="finished", step=4, wall_s=98.4, age_s=3_600.0, metrics={"accuracy": 0.5}, accuracy=0.75)
    assert file_lines(over)[:3] == [
        "tiny: finished, step 4 of 4 in 1 min 38 s, began 1 h 0 min ago",
        "last step   batch accuracy 0.500",
        "held out    75.0 % at the last evaluation",
    ]


def test_a_run_that_is_supervised_need_not_be_resumed() -> None:
    assert not any("resume" in line for line in state_lines(RunState(None, an_overview(), "", True), "runs/tiny"))


def test_what_could_not_be_read_is_noted() -> None:
    assert file_lines(an_overview(steps=None, notes=["config.toml cannot be read"])) == [
        "tiny: stopped, step 2 of ?",
        "checkpoint  none",
        "note        config.toml cannot be read",
    ]
