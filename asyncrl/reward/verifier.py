"""
The interface of verifiers: functions of a `VerifierInput` that return a number.

    verifier(inputs) ─▶ 0.5 | True | {"score": 1.0, "terse": 0.2} ─ verdict_of ─▶ Verdict

Invariant: a reward is a finite number that the verifier returned, within the limits of
`asyncrl.messages.verdict_limits`; an error never becomes a reward of zero.
"""

import inspect
import math
import reprlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.messages.number import number
from asyncrl.messages.trajectory import Prompt, Turn, seat_rewards
from asyncrl.messages.verdict_limits import MAX_ANSWER_CHARS, MAX_METRIC, MAX_METRICS, MAX_REWARD, problem_of
from asyncrl.messages.words import FinishReason


class JudgedTurn(Struct, frozen=True, kw_only=True):
    """One turn of an episode, for a verifier."""

    parent: int
    """Index of the turn it follows; -1: the prompt; -2: nothing, and ``observation`` is all that the policy read."""
    observation: str
    """Text that the environment wrote before the turn."""
    text: str
    """Text that the policy wrote."""
    reward: float
    """Reward of the environment for this turn."""
    seat: int = 0
    """Seat that spoke."""


class VerifierInput(Struct, frozen=True, kw_only=True):
    """Argument of a verifier: one completion or one episode, and the row of its prompt."""

    prompt: str | list[dict[str, str]] = ""
    """The text, or the chat as ``[{"role": ..., "content": ...}]``."""
    completion: str
    """
    Text the policy generated, without special tokens; of an episode, in its last turn. Hostile: the policy writes
    whatever is rewarded.
    """
    opened: str = ""
    """Thought that the prompt had opened, such as ``<think>``: it comes before ``completion``. Often empty."""
    answer: str = ""
    """Reference answer."""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    """Tokens that the policy wrote."""
    turns: list[JudgedTurn] = []
    """Turns of an episode, in the order written; empty without an environment."""
    episode_reward: float | None = None
    """Reward of the environment, the sum of its turns, or the mean over the seats; None without an environment."""
    scores: dict[str, float] = {}
    """Metrics of the environment."""


def verifier_input(
    prompt: Prompt,
    completion: str,
    *,
    finish_reason: FinishReason,
    num_tokens: int,
    turns: Sequence[Turn] = (),
    scores: Mapping[str, float] | None = None,
    opened: str = "",
) -> VerifierInput:
    """Input of a verifier for one completion, or for one episode with its turns and metrics."""
    return VerifierInput(
        prompt=prompt.chat or prompt.text,
        completion=completion,
        opened=opened,
        answer=prompt.answer,
        data_source=prompt.data_source,
        extra=prompt.extra,
        finish_reason=finish_reason,
        num_tokens=num_tokens,
        turns=[
            JudgedTurn(parent=t.parent, observation=t.observation, text=t.text, reward=t.reward, seat=t.seat)
            for t in turns
        ],
        episode_reward=episode_reward(turns),
        scores=dict(scores or {}),
    )


def episode_reward(turns: Sequence[Turn]) -> float | None:
    """Reward of the environment for an episode, the mean over the seats that spoke; None without turns."""
    rewards = seat_rewards(turns).values()
    return math.fsum(rewards) / len(rewards) if rewards else None


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

    A dict's ``score`` is the reward, its other numbers (`asyncrl.messages.number`) are metrics, and a text
    under ``answer`` (``pred`` in verl) is the extracted answer; other keys are ignored. ``correct`` is 1.0 if the score
    is at least 1.0, else 0.0, unless the dict contains it: a function whose best score is not 1 must set it.

    Raises:
        VerifierError: ``value`` is neither a number nor a dict with ``score``, ``correct`` is no number, or a limit of
            `asyncrl.messages.verdict_limits` is broken. A longer answer is not an error: it is shortened.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        score = _number(value, "the function", MAX_REWARD)
        return Verdict(score, {"correct": float(score >= 1.0)})
    if "score" not in value:
        raise VerifierError(f"the function returned {_shown(value)}, expected a number or a dict with 'score'")
    score = _number(value["score"], "the function, as 'score',", MAX_REWARD)
    answer = value.get("answer", value.get("pred"))
    metrics = {"correct": float(score >= 1.0)} | _metrics(value)
    short = _encodable(answer.strip()[:MAX_ANSWER_CHARS]) if isinstance(answer, str) else None
    verdict = Verdict(score, metrics, short)
    if problem := problem_of(verdict.reward, verdict.metrics, verdict.answer):
        raise VerifierError(f"the function returned a dict that is no verdict: {problem}")
    return verdict


def _metrics(value: Mapping[Any, Any]) -> dict[str, float]:
    """Numeric values of a dict; of one with too many, enough to tell."""
    metrics: dict[str, float] = {}
    for key, item in value.items():
        if not isinstance(key, str) or key == "score":
            continue
        if type(item) is float and -MAX_METRIC <= item <= MAX_METRIC:  # most are, and it is the fastest test
            metric = item
        elif key == "correct" or number(item) is not None:
            metric = _number(item, f"the function, as metric {_shown(key)},", MAX_METRIC)
        else:
            continue
        metrics[key if key.isascii() else _encodable(key)] = metric
        if len(metrics) > MAX_METRICS:
            break
    return metrics


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _number(value: object, source: str, most: float) -> float:
    if type(value) is float and -most <= value <= most:
        return value
    found = number(value)
    if found is None or not -most <= found <= most:
        expected = "a finite number; return 0.0 if it means that"
        if found is not None and math.isfinite(found):
            expected = f"a number of at most {most:g} either way"
        raise VerifierError(f"{source} returned {_shown(value)}, expected {expected}")
    return found


def _shown(value: object) -> str:
    """``repr`` of at most 80 characters; a placeholder for an int that is too long to print."""
    try:
        text = _brief.repr(value)
    except ValueError:
        text = f"an enormous {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


_brief = reprlib.Repr()  # makes no text of a whole container or string first
_brief.maxstring = _brief.maxother = _brief.maxlong = 200
