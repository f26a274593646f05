import asyncio
import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from asyncrl.cli.logs import LogFile, Logs, elsewhere_note, log_lines, open_logs, open_screen
from asyncrl.errors import ConfigError
from asyncrl.files.lock import locked
from asyncrl.records.run_directory import RunDirectory
from tests.cli.invoke import asyncrl


def entry(second: int, event: str, **fields: object) -> str:
    return json.dumps({**fields, "event": event, "timestamp": f"2026-01-31T12:00:{second:02}.250000Z"}) + "\n"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text("[run]\nsteps = 4\n")
    write(directory, "broker-0", entry(1, "node.joined", node="trainer-0") + entry(4, "version.live"))
    write(directory, "trainer-0", entry(2, "step.failed", level="error", cause="no memory") + "Traceback:\n  line 3\n")
    return directory


def write(directory: RunDirectory, node: str, text: str) -> None:
    with (directory.logs / f"{node}.log").open("a") as file:
        file.write(text)


def test_logs_are_merged_by_time_and_a_traceback_stays_with_its_event(directory: RunDirectory) -> None:
    assert log_lines(Logs(directory).read(), as_json=False, names_node=True) == [
        "12:00:01.250 broker-0   node.joined about=trainer-0",
        '12:00:02.250 trainer-0  error: step.failed cause="no memory"',
        "trainer-0  Traceback:",
        "trainer-0    line 3",
        "12:00:04.250 broker-0   version.live",
    ]


def test_events_below_a_level_are_left_out_and_text_that_is_no_event_stays(directory: RunDirectory) -> None:
    write(directory, "trainer-0", entry(5, "step.slow", level="warning") + entry(6, "step.done", level="info"))
    found, _ = open_logs(directory.path, "", "warning")
    shown = [line.text for line in found.read()]
    assert [json.loads(text)["event"] if text.startswith("{") else text for text in shown] == [
        "step.failed", "Traceback:", "  line 3", "step.slow",
    ]  # fmt: skip
    assert len(Logs(directory, level="error").read()) == 3


def test_what_a_function_printed_is_its_text_of_level_info(directory: RunDirectory) -> None:
    write(directory, "reward-0", json.dumps({"event": "printed", "level": "info", "text": "grading 3"}) + "\n")
    assert log_lines(Logs(directory, "reward-0").read(), as_json=False, names_node=True) == ["reward-0   grading 3"]
    assert Logs(directory, "reward-0", "warning").read() == []


def test_the_log_of_one_node_can_be_read_as_it_is_in_the_file(directory: RunDirectory) -> None:
    lines = Logs(directory, "broker-0").read()
    text = (directory.logs / "broker-0.log").read_text()
    assert log_lines(lines, as_json=True, names_node=False) == text.splitlines()


def test_a_line_is_read_once_it_is_complete_and_only_once(directory: RunDirectory) -> None:
    file = LogFile(directory.logs / "reward-0.log")
    assert file.read() == []
    write(directory, "reward-0", "half")
    assert file.read() == []
    write(directory, "reward-0", " a line\n")
    assert [line.text for line in file.read()] == ["half a line"]
    assert file.read() == []


def test_following_ends_with_the_run_and_finds_the_logs_of_new_nodes(directory: RunDirectory) -> None:
    held = ExitStack()
    held.enter_context(locked(directory.lock, "held"))

    async def sleep(_seconds: float) -> None:
        write(directory, "rollout-7", entry(9, "engine.loaded"))
        held.close()

    async def followed() -> list[int]:
        return [len(lines) async for lines in Logs(directory).follow(sleep)]

    assert asyncio.run(followed()) == [5, 1]


def test_a_node_without_a_log_here_is_told_from_one_that_does_not_exist(directory: RunDirectory) -> None:
    directory.append_event("node.joined", node="gpu2-rollout", role="rollout")
    directory.append_event("node.joined", node="operator-7", role="supervisor")
    directory.append_event("node.joined", node="spool", role="spool")
    _, elsewhere = open_logs(directory.path, "")
    assert elsewhere == ["gpu2-rollout"]
    told = rf"^no log of gpu2-rollout in {directory.logs}: a node of a service logs on its own machine, to `journalctl"
    assert re.match(told, elsewhere_note(directory.path, elsewhere))
    with pytest.raises(ConfigError, match=told):
        open_logs(directory.path, "gpu2-rollout")
    with pytest.raises(ConfigError, match="has no node rollout-9; there are logs of: broker-0, trainer-0"):
        open_logs(directory.path, "rollout-9")


def test_services_of_the_brokers_machine_have_one_log_for_each_role(directory: RunDirectory) -> None:
    for node in ("reward-0", "rollout-0", "rollout-1", "gpu2-rollout"):
        directory.append_event("node.joined", node=node, role="rollout")
    write(directory, "reward", entry(5, "verdict"))
    write(directory, "rollout", entry(6, "engine.loaded"))
    _, elsewhere = open_logs(directory.path, "")
    assert elsewhere == ["gpu2-rollout"]
    directory.append_event("node.joined", node="spool-0-6c9fb0", role="spool")
    write(directory, "spool", entry(7, "spool.serves"))
    found, elsewhere = open_logs(directory.path, "spool-0-6c9fb0")
    assert elsewhere == ["gpu2-rollout"]
    assert [line.at[17:19] for line in found.read()] == ["07"]
    for node in ("rollout-1", "rollout"):
        found, _ = open_logs(directory.path, node)
        assert [line.at[17:19] for line in found.read()] == ["06"]


def test_a_rollout_that_shares_the_log_of_its_service_is_known_by_the_lines_that_name_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.logs.mkdir()
    for second, replica in ((5, "gpu2-rollout-0"), (6, "gpu2-rollout-1")):
        write(directory, "rollout", entry(second, "engine.loaded", node=replica) + f"Traceback of {replica}\n")
    found, _ = open_logs(tmp_path, "gpu2-rollout-1")
    shown = log_lines(found.read(), as_json=False, names_node=False)
    assert shown == ["12:00:06.250 engine.loaded about=gpu2-rollout-1", "Traceback of gpu2-rollout-1"]


def test_logs_of_services_are_read_without_a_run_and_followed_for_ever(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(ConfigError, match="neither a run directory"):
        open_logs(tmp_path, "")
    directory.logs.mkdir()
    write(directory, "rollout", entry(6, "engine.loaded"))

    found, elsewhere = open_logs(tmp_path, "")

    async def sleep(_seconds: float) -> None:
        write(directory, "rollout", entry(7, "lease.taken"))

    async def followed(looks: int) -> list[int]:
        counts: list[int] = []
        async for lines in found.follow(sleep):
            counts.append(len(lines))
            if len(counts) == looks:
                break
        return counts

    assert elsewhere == []
    assert asyncio.run(followed(3)) == [1, 1, 1]


def test_the_lines_of_the_screen_are_read_alone_and_are_no_log_of_a_node(directory: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=r"was not started by asyncrl run.*: asyncrl top .*/tiny, or asyncrl logs -f"):
        open_screen(directory.path)
    directory.screen.write_text("step   1/4\nstep   2/4\n")
    assert [line.text for line in open_screen(directory.path).read()] == ["step   1/4", "step   2/4"]
    assert "screen" not in {line.node for line in Logs(directory).read()}


def test_attach_shows_the_last_lines_of_a_run_that_is_over_and_ends(directory: RunDirectory) -> None:
    directory.screen.write_text("".join(f"line {number}\n" for number in range(9)))
    shown = asyncrl("attach", directory.path, "-n", 2)
    assert (shown.exit_code, shown.output) == (0, "line 7\nline 8\n")
