"""
The interface of verifiers: functions of a `VerifierInput` that return a number.

    verifier(inputs) ─▶ 0.5 | True | {"score": 1.0, "terse": 0.2} ─ verdict_of ─▶ Verdict

Invariant: a reward is a finite number that the verifier returned; an error never becomes a reward of zero.
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
"""Characters of an answer that count in a majority vote; answers that differ only beyond them are equal."""


class VerifierInput(Struct, frozen=True, kw_only=True):
    """Argument of a verifier: one completion, and the row of its prompt."""

    prompt: str | list[dict[str, str]] = ""
    """The text, or the chat as ``[{"role": ..., "content": ...}]``."""
    completion: str
    """Text the policy generated, without special tokens. Hostile: the policy writes whatever is rewarded."""
    answer: str = ""
    """Reference answer."""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0


def verifier_input(prompt: Prompt, completion: str, *, finish_reason: FinishReason, num_tokens: int) -> VerifierInput:
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
    """A verifier's whole answer. All numbers are finite."""

    reward: float
    metrics: dict[str, float] = {}
    """Always holds ``correct``, which accuracy is the mean of."""
    answer: str | None = None
    """Answer extracted from the completion, for a majority vote; empty: none found; None: not reported."""


class Verifier(Protocol):
    """A function of one `VerifierInput`, sync or async, that returns a number or a dict with ``score`` and metrics."""

    def __call__(self, inputs: VerifierInput, /) -> Any | Awaitable[Any]: ...


def is_async(function: Verifier) -> bool:
    """Return True if calling it gives a coroutine; then many inputs are judged concurrently."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict_of(value: object) -> Verdict:
    """
    Convert the return value of a verifier.

    A dict's ``score`` is the reward, its other numeric values are metrics, and a text under ``answer`` (``pred`` in
    verl) is the extracted answer; other keys are ignored. ``correct`` is 1.0 if the score is at least 1.0, else 0.0,
    unless the dict contains it: a function whose best score is not 1 must set it.

    Raises:
        VerifierError: ``value`` is neither a number nor a dict with ``score``, or a number is not finite.
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
    return Verdict(score, metrics, _normalized(answer) if isinstance(answer, str) else None)


def _normalized(answer: str) -> str:
    """Strip, shorten and make encodable: an extracted answer may be any text."""
    return answer.strip()[:MAX_ANSWER_CHARS].encode("utf-8", "replace").decode()


def _finite(value: object, source: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError(f"{source} returned {_shown(value)}, expected a finite number; return 0.0 if it means that")
    return number


def _shown(value: object) -> str:
    """``repr`` of at most 80 characters; a placeholder for an int that is too long to print."""
    try:
        text = repr(value)
    except ValueError:
        text = f"an enormous {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
