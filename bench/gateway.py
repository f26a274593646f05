"""
Turns of agent programs through the gateway over HTTP, and the same conversation driven directly.

    python bench/gateway.py [--dialects chat,responses,messages] [--seconds 5] [--rounds 3] [--connections 16]
                            [--load 200]

A process serves the gateway with uvicorn on loopback, over an engine that answers every request at once with 16 tokens.
Another one plays conversations of 8 turns over kept-alive connections; each request holds all messages before it.

    throughput    as many turns as they can; ``server_us`` is the CPU time of the serving process per turn, which other
                  load on the machine changes less than the rate
    latency       so many turns a second, evenly spaced (``--load``); ``peer_value`` is the median turn of the
                  same conversations without HTTP, in the same process and run, and ``added_ms`` the difference

Each round measures every case once with new processes; each figure is the median over the rounds. JSON lines.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import smoke
import uvloop
from meter import cpu_s
from processes import ENVIRONMENT

from asyncrl.engine import ChatMessage, Completion, PolicyTurn, Request
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, TurnContext
from asyncrl.messages.trajectory import FROM_PROMPT, Sampling, Span
from asyncrl.messages.words import FinishReason

TURNS = 8
WRITTEN = [ord("x")] * 16
PROMPT: list[ChatMessage] = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 200}]
OBSERVATION: ChatMessage = {"role": "user", "content": "o" * 60}
SAID: ChatMessage = {"role": "assistant", "content": "x" * 16}
LIMITS = EpisodeLimits(max_turns=TURNS, max_tokens=100_000)
PATIENCE_S = 60.0


class ByteBoundary:
    """One token for each character: what stands between turns costs little."""

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        return [code for message in messages for code in message["content"].encode()]

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        return self.after(messages, ())

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        text = self.text(token_ids)
        return PolicyTurn(text=text, content=text)

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": self.text(token_ids)}

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        return None


async def sample(request: Request) -> Completion:
    await asyncio.sleep(0)
    return Completion(
        completion_ids=WRITTEN,
        behavior_logprobs=[-0.5] * len(WRITTEN),
        spans=[Span(0, 0, len(WRITTEN))],
        finish_reason="stop",
        generate_s=0.0,
    )


def conversation() -> Conversation:
    boundary = ByteBoundary()
    sampling = Sampling(max_tokens=len(WRITTEN))
    return Conversation(
        EpisodeRecord(boundary.opening(PROMPT)), sample, boundary, sampling=sampling, limits=LIMITS, seed=1
    )


# ── the serving process ─────────────────────────────────────────────────────────────────────


async def serve_episodes() -> None:
    """For each line on stdin, ``open N`` or ``direct N``, write URLs of N episodes or the median of N in ms."""
    gateway = Gateway()
    loop = asyncio.get_running_loop()
    async with serve(gateway, "tcp://127.0.0.1:0"):
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command, number = line.split()
            if command == "open":
                print(
                    json.dumps([gateway.open(conversation(), PROMPT).base_url for _ in range(int(number))]), flush=True
                )
            else:
                print(json.dumps(median([s for _ in range(int(number)) for s in await directly()]) * 1000), flush=True)


async def directly() -> list[float]:
    """Seconds of each turn of one conversation."""
    talk = conversation()
    parent, context, spent = FROM_PROMPT, list[int](), []
    for _ in range(TURNS):
        begun = time.perf_counter()
        parent = await talk.say(TurnContext(parent, context))
        turn = talk.record.turns[parent]
        talk.boundary.said(turn.completion.completion_ids, turn.completion.finish_reason)
        context = talk.boundary.after([OBSERVATION], turn.completion.completion_ids)
        spent.append(time.perf_counter() - begun)
    return spent


class Server:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls) -> "Server":
        command = [sys.executable, __file__, "--serve"]
        pipe = asyncio.subprocess.PIPE
        environment = os.environ | ENVIRONMENT
        return cls(
            await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26, env=environment)
        )

    async def ask(self, command: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{command}\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            return json.loads(await self._process.stdout.readline())

    async def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            await self._process.wait()


# ── clients ─────────────────────────────────────────────────────────────────────────────────


PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}


def body_of(dialect: str, messages: Sequence[ChatMessage]) -> dict[str, object]:
    """A request for the turn after these messages."""
    asked = {"model": "policy", "temperature": 0.7}
    match dialect:
        case "responses":
            return {**asked, "input": messages}
        case "messages":
            return {**asked, "max_tokens": len(WRITTEN), "system": messages[0]["content"], "messages": messages[1:]}
    return {**asked, "messages": messages}


def requests_of(url: str, dialect: str) -> list[bytes]:
    """The requests of one conversation, whose answers are known."""
    host, _, path = url.removeprefix("http://").partition("/")
    messages, requests = list(PROMPT), []
    for _ in range(TURNS):
        body = json.dumps(body_of(dialect, messages)).encode()
        head = (
            f"POST /{path}/{PATHS[dialect]} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {path.split('/')[1]}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
        messages += [SAID, OBSERVATION]
    return requests


class Client:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> "Client":
        host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: bytes) -> None:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        answer = await self._reader.readexactly(int(length))
        assert SAID["content"].encode() in answer

    def close(self) -> None:
        self._writer.close()


async def throughput(server: Server, dialect: str, connections: int, seconds: float) -> dict[str, float]:
    """Conversations one after another on each connection, prepared before the measurement."""
    urls = await server.ask(f"open {int(seconds * 1000)}")
    left = [requests_of(url, dialect) for url in urls]
    clients = [await Client.connect(urls[0]) for _ in range(connections)]
    num_turns, is_over = 0, False

    async def talk(client: Client) -> None:
        nonlocal num_turns
        while left and not is_over:
            for request in left.pop():
                await client.ask(request)
                num_turns += 1

    begun, cpu = time.perf_counter(), cpu_s(server.pid)
    talking = [asyncio.create_task(talk(client)) for client in clients]
    done: set[asyncio.Task[None]] = set()
    while not (num_turns or done):
        done, _ = await asyncio.wait(talking, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    took, spent = time.perf_counter() - begun, cpu_s(server.pid) - cpu
    turns, is_over = num_turns, True
    await asyncio.gather(*talking)
    for client in clients:
        client.close()
    return {"turns_per_s": turns / took, "server_us": spent / turns * 1e6}


async def latency(server: Server, dialect: str, connections: int, load: int, seconds: float) -> dict[str, float]:
    """Turns at fixed times; a latency counts from the time at which its turn was to begin."""
    each = int(load * seconds / TURNS / connections) + 1
    urls = await server.ask(f"open {each * connections}")
    clients = [await Client.connect(urls[0]) for _ in range(connections)]
    spent: list[float] = []
    begun = time.perf_counter() + 0.2

    async def talk(number: int, client: Client) -> None:
        requests = [request for url in urls[number::connections] for request in requests_of(url, dialect)]
        for place, request in enumerate(requests):
            due = begun + (place * connections + number) / load
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            await client.ask(request)
            spent.append(time.perf_counter() - started)

    await asyncio.gather(*(talk(number, client) for number, client in enumerate(clients)))
    for client in clients:
        client.close()
    spent.sort()
    return {"p50_ms": spent[len(spent) // 2] * 1e3, "p99_ms": spent[int(len(spent) * 0.99)] * 1e3}


async def measure(dialect: str, options: argparse.Namespace) -> dict[str, float]:
    server = await Server.start()
    try:
        await server.ask("direct 20")
        found = await throughput(server, dialect, options.connections, options.seconds)
        found |= await latency(server, dialect, options.connections, options.load, options.seconds)
        return found | {"direct_ms": await server.ask("direct 100")}
    finally:
        await server.stop()


async def main(options: argparse.Namespace) -> None:
    rounds: dict[str, list[dict[str, float]]] = {dialect: [] for dialect in options.dialects}
    for _ in range(options.rounds):
        for dialect, found in rounds.items():
            found.append(await measure(dialect, options))
    for dialect, found in rounds.items():
        report(dialect, found, options)


def report(dialect: str, rounds: Sequence[dict[str, float]], options: argparse.Namespace) -> None:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    _print(
        {
            "bench": "gateway",
            "case": f"{dialect}, throughput, {options.connections} connections",
            "ours": round(middle["turns_per_s"]),
            "unit": "turns/s",
            "better": "higher",
            "server_us": round(middle["server_us"]),
            "rounds": [round(found["turns_per_s"]) for found in rounds],
        }
    )
    _print(
        {
            "bench": "gateway",
            "case": f"{dialect}, latency at {options.load} turns/s",
            "ours": round(middle["p50_ms"], 3),
            "unit": "ms",
            "peer": "direct",
            "peer_value": round(middle["direct_ms"], 3),
            "ratio": round(middle["p50_ms"] / middle["direct_ms"], 1),
            "better": "lower",
            "added_ms": round(median(found["p50_ms"] - found["direct_ms"] for found in rounds), 3),
            "added_p99_ms": round(median(found["p99_ms"] - found["direct_ms"] for found in rounds), 3),
        }
    )


def _print(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialects", type=lambda text: text.split(","), default=list(PATHS), help="APIs to ask by")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--load", type=int, default=200)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = smoke.parsed(parser)
    uvloop.run(serve_episodes() if chosen.serve else main(chosen))
