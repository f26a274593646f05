"""Requests that no gateway should answer with a turn, from a seed."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

GOOD: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
NESTED = b"[" * 20_000
WRONG: list[Any] = [None, True, -1, 1.5, "x", [], [[]], {}, {"a": 1}, [1], "\u0000", 10**30]


class Hostile(Struct, frozen=True):
    method: str
    path: str
    body: bytes
    headers: list[tuple[bytes, bytes]] = []


def requests(seed: int, capability: str) -> Iterator[Hostile]:
    """Endless requests; ``capability`` opens an episode."""
    draw = random.Random(seed)
    chat = f"/e/{capability}/v1/chat/completions"
    while True:
        kind = draw.choice(
            [_wrong_path, _wrong_capability, _wrong_method, _wrong_key, _garbled, _wrong_type, _unsupported]
        )
        yield kind(draw, capability, chat)


def _wrong_path(draw: random.Random, capability: str, chat: str) -> Hostile:
    parts = [
        "e",
        capability,
        "v1",
        "chat",
        "completions",
        "..",
        ".",
        "",
        "%2e%2e",
        "reward",
        "models",
        "\x00",
        "é",
        "a" * 5000,
    ]
    path = "/" + "/".join(draw.choices(parts, k=draw.randint(0, 8)))
    known = {chat, f"/e/{capability}/reward", f"/e/{capability}/v1/models", "/healthz"}
    return Hostile("POST", path + "/" * (path in known), _body())


def _wrong_capability(draw: random.Random, capability: str, chat: str) -> Hostile:
    place = draw.randrange(len(capability))
    wrong = draw.choice(
        [
            capability[:place], capability + "A", capability.swapcase(), capability[::-1], "", "*", "../" + capability,
            capability[:place] + "-" * (capability[place] != "-") + capability[place + 1 :], f"{capability}%00",
            "".join(draw.choices("abcXYZ019-_", k=43)),
        ]
    )  # fmt: skip
    return Hostile("POST", f"/e/{wrong}/v1/chat/completions", _body(), [_bearer(capability)])


def _wrong_method(draw: random.Random, capability: str, chat: str) -> Hostile:
    return Hostile(draw.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"]), chat, _body())


def _wrong_key(draw: random.Random, capability: str, chat: str) -> Hostile:
    value = draw.choice(
        [b"", b"Bearer", b"Bearer ", b"Basic " + capability.encode(), capability.encode(), b"\xff" * 50]
    )
    wrong = draw.choice([value, b"Bearer " + draw.randbytes(20).hex().encode(), b"Bearer " + b"a" * 30_000])
    return Hostile("POST", chat, _body(), [(b"authorization", wrong)])


def _garbled(draw: random.Random, capability: str, chat: str) -> Hostile:
    """Bytes that are no JSON, or are cut, doubled or not UTF-8."""
    body = _body()
    place = draw.randrange(1, len(body))
    garbled = draw.choice(
        [
            b"", body[:place], body + body, body[:place] + b"\xff" + body[place:], draw.randbytes(place), NESTED,
            b'{"messages":' * 5000, b"null", b"1", b'"x"', b"[]", b"\xef\xbb\xbf" + body,
            body.decode().encode("utf-16"),
            b'{"messages":[{"role":"user","content":"\x00"}]}',
            b'{"max_tokens":1e999,' + body[1:], b'{"n":NaN,' + body[1:], b'{"seed":Infinity,' + body[1:],
        ]
    )  # fmt: skip
    return Hostile("POST", chat, garbled, [_bearer(capability)] * draw.randint(0, 1))


def _wrong_type(draw: random.Random, capability: str, chat: str) -> Hostile:
    message: dict[str, Any] = {"role": "user", "content": "Hi"}
    alter: Callable[[], dict[str, Any]] = draw.choice(
        [
            lambda: GOOD | {"messages": draw.choice(WRONG)},
            lambda: GOOD | {"messages": [message | {"role": draw.choice([None, 1, "robot", "function", ["user"]])}]},
            lambda: GOOD | {"messages": [message | {"content": draw.choice([1, True, {}, [1], [{}], [{"type": 1}]])}]},
            lambda: GOOD | {"messages": [message | {"tool_calls": draw.choice([1, [1], [{}], [{"function": {}}]])}]},
            lambda: GOOD | {"messages": [message, draw.choice([None, 1, "x", [], {}])]},
            lambda: (
                GOOD | {"tools": draw.choice([1, "x", {}, [1], [{}], [{"function": 1}], [{"function": {"name": ""}}]])}
            ),
            lambda: GOOD | {"max_tokens": draw.choice([0, -1, 1.5, "1", True, [], 10**30])},
            lambda: GOOD | {"n": draw.choice([0, -1, 129, 10**9, "1", 1.5, []])},
            lambda: (
                GOOD | {draw.choice(["temperature", "top_p", "seed", "stream", "logprobs"]): draw.choice(["x", [], {}])}
            ),
            lambda: (
                GOOD | {draw.choice(["model", "stream_options", "response_format"]): draw.choice([1, [], True, [1]])}
            ),
        ]
    )
    return Hostile("POST", chat, json.dumps(alter()).encode())


def _unsupported(draw: random.Random, capability: str, chat: str) -> Hostile:
    field: dict[str, Any] = draw.choice(
        [
            {"response_format": 5}, {"tool_choice": 5}, {"logit_bias": {"1": 100}},
            {"stop": [""]}, {"functions": [{"name": "x"}]}, {"modalities": ["audio"]}, {"top_logprobs": 3},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
            {"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"a": 1}}, {"echo": True},
        ]
    )  # fmt: skip
    return Hostile("POST", chat, json.dumps(GOOD | field).encode())


def _body() -> bytes:
    return json.dumps(GOOD).encode()


def _bearer(capability: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {capability}".encode()
