"""Payloads sent by all contenders: encoded trajectories of 2,560 tokens, about 20 kB each."""

import array
import random

import msgspec

from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit

PROMPT_TOKENS = 512
COMPLETION_TOKENS = 2048
TEXT_CHARS = 2000
NUM_PAYLOADS = 64
"""Number of distinct payloads, sent in rotation."""

PROMPT_TEXT = "What is the sum of the digits of this number? " * (4 * PROMPT_TOKENS // 46)
"""About 4 characters per token."""

SUMMARY = TrajectorySummary(
    num_tokens=COMPLETION_TOKENS,
    prompt_tokens=PROMPT_TOKENS,
    oldest_version=0,
    newest_version=0,
    num_spans=1,
    finish_reason="length",
)

decode = msgspec.msgpack.Decoder(Trajectory).decode


def payloads(num_tokens: int = COMPLETION_TOKENS) -> list[bytes]:
    """[NUM_PAYLOADS] encoded trajectories of so many completion tokens, the same in every process."""
    rng = random.Random(0)
    return [_payload(rng, index, num_tokens) for index in range(NUM_PAYLOADS)]


def batches(size: int) -> list[list[bytes]]:
    """Batches of ``size`` payloads that contain each payload at least once."""
    ones = payloads()
    return [[ones[(first + i) % NUM_PAYLOADS] for i in range(size)] for first in range(0, NUM_PAYLOADS, size)]


def _payload(rng: random.Random, index: int, num_tokens: int) -> bytes:
    return msgspec.msgpack.encode(
        Trajectory(
            unit=Unit(0, index),
            prompt_ids=_bytes(
                "i", [rng.randrange(150_000) for _ in range(PROMPT_TOKENS * num_tokens // COMPLETION_TOKENS)]
            ),
            completion_ids=_bytes("i", [rng.randrange(150_000) for _ in range(num_tokens)]),
            behavior_logprobs=_bytes("f", [-rng.random() for _ in range(num_tokens)]),
            spans=[Span(0, 0, num_tokens)],
            finish_reason="length",
            text="".join(rng.choices("0123456789 +-*/=", k=TEXT_CHARS * num_tokens // COMPLETION_TOKENS)),
            node="rollout",
            generate_s=1.0,
        )
    )


def _bytes(code: str, values: list[int] | list[float]) -> memoryview:
    return memoryview(array.array(code, values)).cast("B")
