"""examples/hidden_sums_agent.py, as a function and as a program, against an OpenAI server with a scripted policy."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.environment import Client, Said, Task
from asyncrl.tools.toy.hidden_sums import HiddenSum, problems
from tests.examples.conftest import ROOT, load_example
from tests.examples.sums_player import next_turn
from tests.patience import PATIENCE_S

agent = load_example("hidden_sums_agent")
environment = load_example("hidden_sums")

TOM = HiddenSum("Tom", (5, -3, 4))
KEY = "the key"


def task(problem: HiddenSum = TOM) -> Task:
    return Task(
        messages=[{"role": "user", "content": problem.prompt}],
        answer=problem.answer,
        extra={"amounts": " ".join(f"{amount:+d}" for amount in problem.amounts)},
    )


class Server(ThreadingHTTPServer):
    """OpenAI server of a policy, with the chats that it was asked, and the rewards that were put."""

    daemon_threads = True

    def __init__(self, policy: Callable[[list[str]], str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.policy = policy
        self.chats: list[list[str]] = []
        self.rewards: list[float] = []
        self.connections: set[int] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        assert self.path == "/e/1/v1/chat/completions"
        self.server.connections.add(self.client_address[1])
        chat = [message["content"] for message in self.body()["messages"]]
        if self.headers["Authorization"] == f"Bearer {KEY}":
            self.server.chats.append(chat)
            message = {"role": "assistant", "content": self.server.policy(chat)}
            self.reply(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        else:
            self.reply(401, {"error": {"message": "wrong key"}})

    def do_PUT(self) -> None:
        self.server.rewards.append(self.body()["reward"])
        self.send_response(204)
        self.end_headers()

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep the output of the tests clean."""


@contextmanager
def serving(policy: Callable[[list[str]], str] = next_turn) -> Iterator[Server]:
    with Server(policy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def solve(server: Server, problem: HiddenSum = TOM, key: str = KEY, **options: Any) -> float:
    reward: float = asyncio.run(agent.solve(task(problem), Client(f"{server.url}/e/1/v1", key), **options))
    return reward


def run_program(server: Server, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Without packages, and without asyncrl."""
    (folder / "task.json").write_bytes(msgspec.json.encode(task()))
    variables = {
        "OPENAI_BASE_URL": f"{server.url}/e/1/v1",
        "OPENAI_API_KEY": KEY,
        "ASYNCRL_TASK": str(folder / "task.json"),
        "ASYNCRL_REWARD_URL": f"{server.url}/e/1/reward",
    }
    command = [sys.executable, "-I", "-S", str(ROOT / "examples" / "hidden_sums_agent.py"), *options]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.slow("a program for every row")
def test_a_policy_that_makes_no_mistake_is_always_right() -> None:
    with serving() as server:
        assert {solve(server, problem) for problem in islice(problems(0, "held_out"), 20)} == {1.0}


def test_a_wrong_answer_has_no_reward() -> None:
    with serving(lambda chat: " #### 5") as server:
        assert solve(server) == 0.0


def test_every_request_carries_the_whole_chat_over_one_connection() -> None:
    with serving() as server:
        solve(server)
    assert [len(chat) for chat in server.chats] == [1, 3, 5, 7, 9, 11, 13]
    assert server.chats[-1][:5] == ["Tom a b c How many now?", " a ?", "+5", "0+5 !", "=5"]
    assert len(server.connections) == 1


def test_a_summary_begins_a_new_chat() -> None:
    with serving() as server:
        assert solve(server, compact_every=4) == 1.0
    assert [len(chat) for chat in server.chats] == [1, 3, 5, 7, 1, 3, 5]
    assert server.chats[4] == ["Tom so far 2 c How many now?"]


def test_it_gives_up_after_as_many_turns_as_the_run_file_allows() -> None:
    with serving(lambda chat: " a ?") as server:
        assert solve(server) == 0.0
    assert len(server.chats) == 17
    assert "max_turns = 17 " in (ROOT / "conf" / "hidden-sums.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("turn", [" a ?", " z ?", "0+5 !", "0-5 !", "5 !", " a b ?", "+5 ?"])
def test_it_answers_the_policy_like_the_environment(turn: str) -> None:
    boxes = environment.Boxes()
    boxes.reset(task())
    with serving(lambda chat: turn if len(chat) == 1 else " ####") as server:
        solve(server)
    assert server.chats[1][-1] == boxes.step(Said(turn)).messages[0]["content"]


def test_what_the_server_refuses_is_told() -> None:
    with serving() as server, pytest.raises(RuntimeError, match=r"/chat/completions: 401 .*wrong key"):
        solve(server, key="another")


@pytest.mark.parametrize("options", [[], ["--compact-every", "4"]])
def test_as_a_program_it_puts_its_reward(tmp_path: Path, options: list[str]) -> None:
    with serving() as server:
        ended = run_program(server, tmp_path, *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert server.rewards == [1.0]
