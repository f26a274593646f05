"""
What a verifier is: a function of a `VerifierInput` that gives a number.

    verifier(sample) ─▶ 0.5 | True | {"score": 1.0, "terse": 0.2} ─ verdict_of ─▶ Verdict

A verdict is a finite number or it is not there: nothing that went wrong is ever read as a reward of zero.
"""

import inspect
import math
from collections.abc import Awaitable, Mapping
from numbers import Real
from typing import Any, Protocol

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.messages import FinishReason, Prompt

MAX_ANSWER_CHARS = 200
"""Of what votes; two answers that differ only beyond are one."""


class VerifierInput(Struct, frozen=True, kw_only=True):
    """What a verifier judges: one completion, and what is known about the right answer."""

    prompt: str | list[dict[str, str]] = ""
    """The text, or the chat as ``[{"role": ..., "content": ...}]``."""
    completion: str
    """What the policy wrote, decoded without special tokens. Hostile: it is whatever pays."""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    """Completion tokens."""


def to_judge(prompt: Prompt, completion: str, *, finish_reason: FinishReason, num_tokens: int) -> VerifierInput:
    """A completion of ``prompt``, with what is known about the right answer."""
    return VerifierInput(
        prompt=prompt.chat or prompt.text,
        completion=completion,
        answer=prompt.answer,
        data_source=prompt.data_source,
        extra=prompt.extra,
        finish_reason=finish_reason,
        num_tokens=num_tokens,
    )


class Verdict(Struct, frozen=True):
    """A finite score, and finite numbers beside it."""

    reward: float
    metrics: dict[str, float] = {}
    """Always holds ``correct``, which feeds accuracy."""
    answer: str | None = None
    """What the function took for the answer, for a majority vote; empty if it found none, None if it does not say."""


class Verifier(Protocol):
    """A function of one sample: sync or async."""

    def __call__(self, sample: VerifierInput, /) -> Any | Awaitable[Any]:
        """A number, or a dict with ``score`` and further numbers."""


def is_async(function: Verifier) -> bool:
    """Calling it gives a coroutine: many samples may be in its hands at once."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict_of(value: object) -> Verdict:
    """
    What a function returned, as a verdict.

    A dict's further numeric keys become metrics, and a text under ``answer`` (``pred`` in verl) is what the completion
    votes for; keys with other values are the function's own affair. ``correct`` is 1.0 if the score is at least 1.0,
    else 0.0, unless the dict says it itself: a function whose full marks are not 1 must.

    Raises:
        VerifierError: It is no finite number, or a metric is not finite; says what was returned.
    """
    answer: object = None
    if not isinstance(value, Mapping):
        score, metrics = _finite(value, "the function"), {}
    elif "score" not in value:
        raise VerifierError(f"the function returned {_shown(value)}, expected a number or a dict with 'score'")
    else:
        score = _finite(value["score"], "the function, as 'score',")
        metrics = {
            key: _finite(item, f"the function, as metric {key!r},")
            for key, item in value.items()
            if key != "score" and isinstance(key, str) and isinstance(item, Real)
        }
        answer = value.get("answer", value.get("pred"))
    metrics = {"correct": float(score >= 1.0)} | metrics
    return Verdict(score, metrics, _vote(answer) if isinstance(answer, str) else None)


def _vote(answer: str) -> str:
    """Short, without white space at its ends, and such that it can be encoded: it may be anything the policy wrote."""
    return answer.strip()[:MAX_ANSWER_CHARS].encode("utf-8", "replace").decode()


def _finite(value: object, who: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError(f"{who} returned {_shown(value)}, expected a finite number; return 0.0 if it means that")
    return number


def _shown(value: object) -> str:
    """Its ``repr``, short enough for a log line; an int too long to be printed is only named."""
    try:
        text = repr(value)
    except ValueError:
        text = f"an enormous {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
