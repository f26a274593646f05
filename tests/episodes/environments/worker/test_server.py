"""The loop of a worker, spoken to over pipes as a pool does."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.episodes.worker import server, start
from asyncrl.workers.frames import read_frame
from tests.episodes.environments.environments import written

pytestmark = pytest.mark.timeout(60)
TASK = {"messages": [], "seed": 3}
SAID = {"text": "go on", "tool_calls": []}


class Spoken:
    """A worker, and the messages it sends."""

    def __init__(self, name: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, start.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        function = f"{written(folder)}:{name}"
        self.say({"load": {"function": function, "options": {}, "tools": [], "call_s": 5.0, "seats": 1}})

    def say(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(server.encode, messages)))
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message = read_frame(self.process.stdout)
        assert message is not None
        found: dict[str, Any] = json.loads(message)
        return found

    def end(self) -> bytes:
        """Close its stdin; return what it printed."""
        _, printed = self.process.communicate()
        assert self.process.returncode == 0
        return printed


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Spoken]:
    spoken = Spoken("Boxes", tmp_path)
    assert spoken.hear()["loaded"] == {"kind": "steps", "resume": "snapshot", "tools": []}
    yield spoken
    if spoken.process.poll() is None:
        spoken.end()


def test_each_call_is_begun_and_answered(boxes: Spoken) -> None:
    boxes.say({"n": 1, "episode": 1, "call": "reset", "task": TASK})
    boxes.say({"n": 2, "episode": 1, "call": "step", "said": SAID})

    heard = [boxes.hear() for _ in range(4)]

    assert [(frame["n"], "begun" in frame) for frame in heard] == [(1, True), (1, False), (2, True), (2, False)]
    assert heard[3]["answer"]["messages"] == [{"role": "user", "content": "4"}]


def test_a_slow_call_does_not_hold_up_another_episode(boxes: Spoken) -> None:
    boxes.say({"n": 1, "episode": 1, "call": "reset", "task": TASK})
    boxes.say({"n": 2, "episode": 1, "call": "step", "said": {**SAID, "text": "sleep"}})
    boxes.say({"n": 3, "episode": 2, "call": "reset", "task": TASK})

    assert [boxes.hear()["n"] for _ in range(5)] == [1, 1, 2, 3, 3]
    boxes.say({"n": 2, "cancel": True})
    assert boxes.hear() == {"n": 2, "error": "step was cancelled", "retryable": True}


def test_calls_of_one_episode_wait_for_each_other(boxes: Spoken) -> None:
    boxes.say({"n": 1, "episode": 1, "call": "reset", "task": TASK})
    boxes.say({"n": 2, "episode": 1, "call": "step", "said": {**SAID, "text": "sleep"}})
    boxes.say({"n": 3, "episode": 1, "call": "close"})

    assert [boxes.hear()["n"] for _ in range(3)] == [1, 1, 2]
    boxes.say({"n": 2, "cancel": True})
    assert [boxes.hear()["n"] for _ in range(3)] == [2, 3, 3]


def test_an_exception_is_told_with_its_place(boxes: Spoken) -> None:
    boxes.say({"n": 1, "episode": 1, "call": "reset", "task": TASK})
    boxes.say({"n": 2, "episode": 1, "call": "step", "said": {**SAID, "text": "raise"}})

    error = [boxes.hear() for _ in range(4)][-1]

    assert error["error"].startswith("step raised ValueError: no such box (")
    assert error["retryable"]


def test_what_an_environment_prints_does_not_reach_the_pipe(boxes: Spoken) -> None:
    boxes.say({"n": 1, "episode": 1, "call": "reset", "task": TASK})
    boxes.say({"n": 2, "episode": 1, "call": "step", "said": {**SAID, "text": "print"}})
    for _ in range(4):
        boxes.hear()

    assert boxes.end() == b"x" * 100 + b"\n"


def test_blocking_calls_of_many_async_programs_do_not_wait_for_each_other(tmp_path: Path) -> None:
    spoken = Spoken("meet", tmp_path)
    spoken.hear()
    request = {"call": "solve", "task": TASK, "base_url": "", "key": ""}
    spoken.say(*({"n": number, "episode": number, **request} for number in range(100)))

    heard = [spoken.hear() for _ in range(200)]

    assert [frame["answer"]["reward"] for frame in heard if "answer" in frame] == [1.0] * 100
    spoken.end()


def test_code_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    spoken = Spoken("Bexes", tmp_path)

    assert "did you mean 'Boxes'?" in spoken.hear()["refused"]
    spoken.end()


# ── test pipe ─────────────────────────────────────────────────────────────────────────────────


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        server.encode({"reward": float("nan")})


def test_half_a_character_in_a_text_of_an_environment_becomes_a_replacement_character() -> None:
    frame = server.encode({"content": "caf\udce9 \ud83d\ude00 \x00"})
    assert msgspec.json.decode(frame[frame.index(b"{") :]) == {"content": "caf\ufffd \U0001f600 \x00"}


def test_what_has_begun_is_written_before_anything_else_happens() -> None:
    async def written() -> tuple[bytes, bytes]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        outbox = await server.open_outbox(writer)
        outbox.send(server.encode({"n": 1}))
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)
        outbox.begin(2)
        begun = os.read(reader, 100)
        outbox.send(server.encode({"n": 2}))
        await asyncio.sleep(0)
        after = os.read(reader, 100)
        outbox._transport.close()
        os.close(reader)
        await asyncio.sleep(0)
        return begun, after

    assert asyncio.run(written()) == (
        server.encode({"n": 1}) + server.encode({"n": 2, "begun": True}),
        server.encode({"n": 2}),
    )
