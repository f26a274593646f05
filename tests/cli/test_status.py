"""The command that is told continues the run."""

import asyncio
import io
import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.cli import status
from asyncrl.cli import status as module
from asyncrl.cli.status import (
    CLOSE,
    COMMANDS,
    OPEN,
    REDRAW,
    SERVICES,
    Display,
    RunView,
    ask_status,
    cropped,
    file_lines,
    how_to_resume,
    live_lines,
    node_lines,
    opened,
    plain,
    run_state,
    state_lines,
    states,
)
from asyncrl.config.run_file import to_toml
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import locked
from asyncrl.messages.session import ContainerCounts
from asyncrl.messages.supervisor import AbsentNode, Finished, Incident, NodeStatus, Status, StatusWanted
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import RunOverview
from asyncrl.wire.run_address import RunAddress
from tests.cli.conversation import with_broker
from tests.config.configs import made


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("tcp://127.0.0.1:0", "asyncrl resume {run}"),
        ("ipc:///run/broker", "asyncrl resume {run}"),
        ("tcp://10.0.0.1:5570", SERVICES),
        (["tcp://127.0.0.1:5570", "tcp://10.0.0.1:5570"], SERVICES),
    ],
)
def test_a_run_that_other_machines_reach_is_continued_by_its_services(
    tmp_path: Path, bind: str | list[str], expected: str
) -> None:
    (tmp_path / "config.toml").write_text(to_toml(made(broker={"bind": bind})))
    assert how_to_resume(str(tmp_path)) == expected.format(run=tmp_path)


def test_a_run_with_keys_is_continued_by_its_services(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(made(broker={"bind": "tcp://127.0.0.1:5570"})))
    (tmp_path / "key").touch()
    assert how_to_resume(str(tmp_path)) == SERVICES


def test_a_folder_of_services_whose_broker_never_began_names_the_log_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(ConfigError, match=f"no run in {tmp_path} yet: .* the broker's log, in {tmp_path}/logs or with"):
        status.opened(str(tmp_path))


def test_a_configuration_that_cannot_be_read_is_left_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("run = 1")
    assert how_to_resume(str(tmp_path)) == f"asyncrl resume {tmp_path}"


@pytest.mark.parametrize("command", COMMANDS.values())
def test_the_manager_whose_files_name_the_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "config.toml").write_text(to_toml(made(broker={"bind": "tcp://10.0.0.1:5570"})))
    (tmp_path / "services").write_text(f"--role broker --run-dir {tmp_path} --broker tcp://10.0.0.1:5570")
    monkeypatch.setattr(status, "COMMANDS", {tmp_path / "services": command, tmp_path / "none": "another"})
    assert how_to_resume(str(tmp_path)) == f"restart its services on every machine: {command}"
    assert "restart" in command, "a start passes over a service that is still ending"


# ── test status ───────────────────────────────────────────────────────────────────────────────

STATUS = Status("tiny", "running", 1, 4, 0, 4, 0, 2, {}, [NodeStatus("spool", "spool", "working")])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text('[run]\nsteps = 4\n[model]\npath = "m"\n[data]\ntrain = "t"\n')
    return directory


def finish(directory: RunDirectory, *, planned: int = 4, goal: str = "") -> None:
    summary = RunSummary(
        name="tiny", status="finished", seed=0, steps=4, steps_planned=planned, goal=goal, versions=4,
        wall_s=1.0, trained_tokens=9,
        staleness_mean=0.0, staleness_max=0,
    )  # fmt: skip
    directory.write_summary(summary)


def test_a_broker_is_asked_for_the_state() -> None:
    assert asyncio.run(with_broker(ask_status, {StatusWanted: [STATUS]}))[0] == STATUS


def test_a_run_that_is_over_is_told_by_its_files_without_waiting(directory: RunDirectory) -> None:
    finish(directory)
    state = asyncio.run(run_state(str(directory.path)))
    assert state.live is None
    assert state.files is not None
    assert (state.files.status, state.is_unknown) == ("finished", False)
    assert state.unasked == "its broker has ended, because the run is over"


def test_a_run_that_met_its_goal_early_says_which(directory: RunDirectory) -> None:
    finish(directory, planned=42, goal="accuracy >= .6")
    told = asyncio.run(run_state(str(directory.path))).unasked
    assert told.endswith("the run is over: an evaluation has what run.stop_when = 'accuracy >= .6' asks")


def test_a_killed_run_is_told_by_its_files_and_its_state_is_unknown(directory: RunDirectory) -> None:
    state = asyncio.run(run_state(str(directory.path)))
    assert state.is_unknown
    assert state.unasked.startswith("its broker does not run, and no end of the run is recorded")


def test_a_broker_that_is_started_again_is_told_from_one_that_is_gone(directory: RunDirectory) -> None:
    with locked(directory.supervisor_lock, "held"):
        state = asyncio.run(run_state(str(directory.path)))
    assert state.is_awaited
    assert state.unasked == "its broker does not run at this moment, but `asyncrl run` does, and starts or ends it"


def test_a_broker_that_refused_its_run_file_is_told_with_the_cause_until_one_starts(directory: RunDirectory) -> None:
    directory.append_event("run.started")
    directory.append_event("broker.refused", cause="schedule.group_size is 4, but this run was created with 8")
    cause = "the broker refused the run: schedule.group_size is 4, but this run was created with 8"
    state = asyncio.run(run_state(str(directory.path)))
    assert state.unasked == cause
    lines = state_lines(state, "runs/tiny")
    assert f"cause       {cause}" in lines
    assert lines[-1] == "resume: asyncrl resume runs/tiny"
    directory.append_event("run.resumed")
    state = asyncio.run(run_state(str(directory.path)))
    assert (state.files and state.files.cause, state.is_awaited) == ("", True)


def test_a_broker_that_refused_to_extend_a_finished_run_is_told_too(directory: RunDirectory) -> None:
    finish(directory)
    directory.append_event("run.finished", status="finished", cause="")
    directory.append_event("broker.refused", cause="run.steps is 3, but this run has 4 by now")
    state = asyncio.run(run_state(str(directory.path)))
    assert (state.files and state.files.status, state.is_unknown) == ("finished", False)
    assert state.unasked == "the broker refused the run: run.steps is 3, but this run has 4 by now"


def test_a_broker_that_refused_to_go_on_with_a_run_that_was_ended_early_is_told_in_place_of_that_end(
    directory: RunDirectory,
) -> None:
    finish(directory)
    ended = msgspec.json.decode(directory.summary.read_bytes(), type=RunSummary)
    directory.write_summary(replace(ended, status="interrupted", cause="the run was interrupted"))
    directory.append_event("run.finished", status="interrupted", cause="the run was interrupted")
    directory.append_event("broker.refused", cause="run.steps is 3, but this run has 4 by now")
    state = asyncio.run(run_state(str(directory.path)))
    assert (state.files and state.files.status, state.is_unknown) == ("interrupted", True)
    assert state.unasked == "the broker refused the run: run.steps is 3, but this run has 4 by now"
    directory.append_event("run.resumed")
    directory.append_event("run.finished", status="interrupted", cause="the run was interrupted")
    assert not asyncio.run(run_state(str(directory.path))).is_unknown


def test_a_broker_that_ended_a_moment_ago_is_awaited_unless_asyncrl_run_had_started_it(directory: RunDirectory) -> None:
    directory.append_event("run.started")
    state = asyncio.run(run_state(str(directory.path)))
    assert (state.is_awaited, state.is_unknown) == (True, True)
    assert state.unasked.startswith("its broker ended a moment ago: its service manager starts it again")
    assert not any("resume" in line for line in state_lines(state, "runs/tiny"))
    os.utime(directory.events, (1.0, 1.0))
    assert not asyncio.run(run_state(str(directory.path))).is_awaited
    os.utime(directory.events)
    directory.supervisor_lock.touch()
    assert not asyncio.run(run_state(str(directory.path))).is_awaited


def test_a_broker_that_hangs_is_told_by_files_with_the_reason(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_run: RunAddress) -> Status:
        raise LinkError("no broker answered")

    monkeypatch.setattr(module, "ask_status", hangs)
    with locked(directory.lock, "held"):
        directory.address.write_text("ipc:///tmp/broker\n")
        state = asyncio.run(run_state(str(directory.path)))
    assert state.unasked == "its broker could not be asked: no broker answered"
    assert state.files is not None
    assert state.files.status == "running"


def test_a_broker_that_has_yet_to_listen_is_told_to_be_starting_without_waiting(directory: RunDirectory) -> None:
    with locked(directory.lock, "held"):
        state = asyncio.run(run_state(str(directory.path)))
    assert state.unasked == "the broker is starting: it reads the prompts and the ledger"
    assert state.files is not None
    assert state.files.status == "running"


def test_a_name_that_is_no_run_says_how_to_find_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a run directory nor a broker's address.*asyncrl ls"):
        opened(str(tmp_path))


def test_a_mistyped_run_is_answered_with_the_one_beside_it(directory: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=rf"; did you mean {directory.path}\?$"):
        opened(f"{directory.path}x")


def test_messages_become_objects_in_json() -> None:
    assert plain(STATUS)["nodes"][0]["node"] == "spool"


# ── test status lines ─────────────────────────────────────────────────────────────────────────

NODES = [
    NodeStatus("supervisor-0", "supervisor", "working"),
    NodeStatus("reward-0", "reward", "waiting", "trajectories", lag_s=0.001, silent_s=0.05),
    NodeStatus("rollout-0", "rollout", "working", "", 18, 8, 62, 1400.0, 0.002, 0.1),
    NodeStatus("trainer-0", "trainer", "waiting", "step 20: 0 of 16 groups complete", tokens_per_s=2420.0),
]
LIVE = Status(
    "quickstart", "running", 19, 40, 18, 32, 32, 8, {"sampling": 16, "grading": 0, "taken": 16}, NODES, 29.34,
    [Incident("rollout-1 was lost: silent for 10 s", 12.0), Incident("group dropped: zero_variance", 75.0, 3)],
    {"reward": 0.891, "kl": float("nan"), "tokens_per_s": 12_300.0, "wait_trainer": 0.04}, 0.797, 0.086,
)  # fmt: skip


def test_a_running_run_is_told_in_80_columns() -> None:
    lines = live_lines(LIVE)
    assert lines == [
        "quickstart: running, step 19 of 40, v18 live, 29.3 s",
        "window         32 of 32 groups of 8 open: 16 sampling, 16 taken",
        "last step      reward 0.891, kl nan",
        "last 10 steps  12.3k tok/s, trainer waits 4%",
        "held out       8.6 % at first, 79.7 % at the last evaluation",
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


def test_the_pace_of_a_run_with_fewer_steps_than_its_span_says_how_many() -> None:
    metrics = {"tokens_per_s": 10.0, "kl": -0.0}
    young = Status("run", "running", 8, 20, 0, 4, 0, 2, {}, [], metrics=metrics)
    assert live_lines(young)[2:4] == ["last step     kl 0.0000", "last 8 steps  10 tok/s"]


def test_completions_that_failed_are_told_beside_the_held_out_accuracy() -> None:
    told = "held out       8.6 % at first, 79.7 % at the last evaluation (6 failed)"
    assert live_lines(replace(LIVE, accuracy_failed=6))[4] == told
    assert told.split("first, ")[1] in "".join(file_lines(an_overview(accuracy=0.797, accuracy_failed=6)))


def test_a_held_out_reward_that_is_not_the_accuracy_is_told_beside_it() -> None:
    told = "79.7 % at the last evaluation, reward 0.480"
    assert live_lines(replace(LIVE, held_out_reward=0.48))[4].endswith(f" 8.6 % at first, {told}")
    assert told in "".join(file_lines(an_overview(accuracy=0.797, held_out_reward=0.48)))


def test_the_metrics_of_a_step_that_do_not_fit_are_left_out_the_least_important_first() -> None:
    metrics = {
        "reward": -123.4567, "accuracy": 0.5, "length_mean": 123456.0, "staleness_mean": 12.0, "kl": 0.1,
    }  # fmt: skip
    lines = live_lines(Status("run", "running", 1, 2, 0, 4, 0, 2, {}, [], metrics=metrics))
    assert lines[2] == "last step  reward -123.457, batch accuracy 0.500, length 123456, staleness 12.00"
    assert len(lines[2]) <= 80


def test_many_nodes_that_wait_for_the_same_are_one_line() -> None:
    nodes = [NodeStatus(f"r{n}", "rollout", "waiting", "the trainer") for n in range(100)]
    lines = live_lines(Status("run", "running", 0, 1, -1, 4, 0, 2, {}, nodes))
    assert lines[0].endswith("no weights published yet, 0.0 s")
    assert "  r0, r1, r2, r3 and 96 more  the trainer" in lines


def test_a_node_that_is_away_has_its_row_and_since_when_and_why() -> None:
    absent = [
        AbsentNode("rollout-1", "rollout", "lost", "silent for 10 s", 75.0),
        AbsentNode("spool-1", "spool", "silent", "", 5.0),
    ]
    lines = live_lines(replace(LIVE, absent=absent))
    assert lines[10:15] == [
        "rollout-1  rollout  lost",
        "spool-1    spool    silent",
        "",
        "away",
        "  rollout-1  lost 1 min 15 s ago: silent for 10 s; 1 rollout connected",
    ]
    assert lines[15] == "  spool-1    not back since the broker's start 5.0 s ago; 0 spools connected"


def test_the_containers_of_each_rollout_are_told() -> None:
    held = ContainerCounts(leased=3, warm=2, oldest_s=75.0, started=40, failed=1)
    nodes = [
        NodeStatus("rollout-0", "rollout", "working", containers=held),
        NodeStatus("reward-0", "reward", "working"),
    ]
    lines = live_lines(Status("run", "running", 0, 1, -1, 4, 0, 2, {}, nodes))
    assert lines[-3:] == [
        "",
        "containers",
        "  rollout-0  3 run, 2 warm, the oldest for 1 min 15 s; 40 started so far; 1 could not be started",
    ]


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
    assert state_lines(RunView(files=failed), "runs/tiny") == [
        "tiny: failed, step 2 of 4",
        "cause       out of memory",
        "checkpoint  runs/tiny/checkpoints/step_000002",
        "resume: asyncrl resume runs/tiny",
    ]


def test_a_run_that_ended_while_it_was_paused_says_what_lets_it_sample_again() -> None:
    assert state_lines(RunView(files=an_overview(status="interrupted", paused_by="ann")), "runs/tiny")[-2:] == [
        "resume: asyncrl resume runs/tiny",
        "paused: ann paused sampling, which a resume does not end; once the run is resumed: asyncrl unpause runs/tiny",
    ]


def test_a_run_that_is_over_is_told_with_its_duration() -> None:
    over = an_overview(status="finished", step=4, wall_s=98.4, age_s=3_600.0, metrics={"accuracy": 0.5}, accuracy=0.75)
    assert file_lines(over)[:3] == [
        "tiny: finished, step 4 of 4 in 1 min 38 s, began 1 h 0 min ago",
        "last step   batch accuracy 0.500",
        "held out    75.0 % at the last evaluation",
    ]


def test_a_run_that_is_supervised_need_not_be_resumed() -> None:
    assert not any("resume" in line for line in state_lines(RunView(None, an_overview(), "", True), "runs/tiny"))


def test_what_could_not_be_read_is_noted() -> None:
    assert file_lines(an_overview(steps=None, notes=["config.toml cannot be read"])) == [
        "tiny: stopped, step 2 of ?",
        "checkpoint  none",
        "note        config.toml cannot be read",
    ]


# ── test top ──────────────────────────────────────────────────────────────────────────────────

LIVE_TOP = RunView(live=Status("tiny", "running", 1, 4, 0, 4, 0, 2, {}, []))
OVER = RunView(
    files=RunOverview(run="tiny", status="finished", step=4, steps=4, reward=1.0, base_accuracy=None, accuracy=None)
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def watched(where: str, *looks: RunView, monkeypatch: pytest.MonkeyPatch) -> list[RunView]:
    """States of a run whose first looks are these; the broker ends the run at the second question of a session."""
    following = iter(looks)

    async def look(_where: str, _key: Path | None) -> RunView:
        return next(following)

    async def command(run: RunAddress) -> list[RunView]:
        monkeypatch.setattr(module, "run_state", look)
        monkeypatch.setattr(module, "locate", lambda *_: run)
        return [state async for state in states(where, None, 0.001)]

    assert LIVE_TOP.live
    answers = {StatusWanted: [LIVE_TOP.live, Finished("finished", "")]}
    return (await with_broker(command, answers))[0]


def test_a_run_is_watched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(watched("runs/tiny", LIVE_TOP, OVER, monkeypatch=monkeypatch)) == [LIVE_TOP, LIVE_TOP, OVER]


def test_a_run_that_is_over_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(watched("runs/tiny", OVER, monkeypatch=monkeypatch)) == [OVER]


def test_the_end_of_a_run_at_an_address_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LinkError, match="the run has just ended: finished"):
        asyncio.run(watched("tcp://broker:1", LIVE_TOP, monkeypatch=monkeypatch))


def test_without_a_terminal_blocks_follow_each_other() -> None:
    out = io.StringIO()
    with Display(out) as display:
        display.draw(["a", "b"])
        display.draw(["c"])
    assert out.getvalue() == "a\nb\n\nc\n\n"


def test_a_terminal_is_redrawn_and_keeps_the_last_block() -> None:
    out = Terminal()
    with Display(out) as display:
        display.draw(["first"])
        display.draw(["last"])
    assert out.getvalue() == f"{OPEN}{REDRAW}first{REDRAW}last{CLOSE}last\n"


def test_what_does_not_fit_a_screen_is_cut_and_counted() -> None:
    assert cropped(["123456", "b", "c", "d"], columns=5, rows=3) == ["1234…", "b", "... 2 more lines"[:4] + "…"]
    assert cropped(["12345", "b"], columns=5, rows=2) == ["12345", "b"]
