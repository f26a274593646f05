"""
The interface of verifiers: functions of a `VerifierInput` that return a number.

    verifier(inputs) ─▶ 0.5 | True | {"score": 1.0, "terse": 0.2} ─ verdict_of ─▶ Verdict
    group function([member, ...]) ─▶ [0.5, {"score": 1.0, "wins": 3}, ...] ─ verdicts_of ─▶ one Verdict for each

Invariant: a reward is a finite number that the verifier returned, within the limits of
`asyncrl.messages.verdict_limits`; an error never becomes a reward of zero.
"""

import inspect
import math
import reprlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from asyncrl.config.sections.reward import POINTWISE
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
    """
    Argument of a verifier: one completion or one episode, and the row of its prompt.

    prompt           text of the prompt, or the chat as ``[{"role": ..., "content": ...}]``
    completion       text that the policy wrote, without special tokens; of an episode, in its last turn. Hostile: the
                     policy writes whatever is rewarded
    opened           thought that the prompt had opened, such as ``<think>``: it precedes ``completion``; often empty
    answer           reference answer of the row
    data_source      data source of the row, such as ``openai/gsm8k``; empty without
    extra            the row's other columns and its ``extra_info``: texts, numbers, bools and None by name
    tools            tools of the row, as JSON text of a list in OpenAI's form; empty without
    finish_reason    ``stop``, ``length`` if a limit cut the completion, or another of ``FinishReason``
    num_tokens       number of tokens that the policy wrote
    turns            turns of an episode, a `JudgedTurn` each, in the order written; empty without an environment
    episode_reward   reward of the environment, the sum of its turns, or the mean over the seats; None without an
                     environment
    scores           metrics of the environment by name
    """

    prompt: str | list[dict[str, str]] = ""
    completion: str
    opened: str = ""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    tools: str = ""
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    turns: list[JudgedTurn] = []
    episode_reward: float | None = None
    scores: dict[str, float] = {}


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
        tools=prompt.tools,
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


class Abstained(VerifierError):
    """A part of the reward does not judge this completion, and others may."""


class Verdict(Struct, frozen=True):
    """A verifier's whole answer. All numbers are finite."""

    reward: float
    metrics: dict[str, float] = {}
    """Always holds ``correct``, which accuracy is the mean of."""
    answer: str | None = None
    """Answer extracted from the completion, for a majority vote; empty: none found; None: not reported."""


class GroupMember(VerifierInput, frozen=True, kw_only=True):
    """
    One of the trajectories that a group function compares: a `VerifierInput`, and the verdict of ``reward.function``.

    reward      reward of the verdict
    metrics     metrics of the verdict by name; always with ``correct``
    extracted   answer found in the completion; empty: none found; None: the function reports none
    """

    reward: float
    metrics: dict[str, float]
    extracted: str | None = None


def group_member(inputs: VerifierInput, verdict: Verdict) -> GroupMember:
    return GroupMember(**asdict(inputs), reward=verdict.reward, metrics=verdict.metrics, extracted=verdict.answer)


class GroupFunction(Protocol):
    """A function of the members of one group, sync or async, that returns what a `Verifier` does for each of them."""

    def __call__(self, members: list[GroupMember], /) -> Any | Awaitable[Any]: ...


class Verifier(Protocol):
    """A function of one `VerifierInput`, sync or async, that returns a number or a dict with ``score`` and metrics."""

    def __call__(self, inputs: VerifierInput, /) -> Any | Awaitable[Any]: ...


def is_async(function: Verifier | GroupFunction) -> bool:
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


def verdicts_of(value: object, members: Sequence[GroupMember]) -> list[Verdict]:
    """
    Convert the return value of a group function: a sequence of what `verdict_of` takes, one for each member.

    The metrics of a member stay, unless the function gives others of these names; its reward is the metric
    `POINTWISE` from now on. So is ``correct`` that of ``reward.function``, unless the function says it.

    Raises:
        VerifierError: ``value`` is no such sequence, or one of it is no verdict.
    """
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise VerifierError(
            f"the group function returned {_shown(value)}, expected a list with a number or a dict for each of "
            f"{len(members)} trajectories"
        )
    values: list[object] = list(value)
    if len(values) != len(members):
        raise VerifierError(
            f"the group function returned {len(values)} verdicts on {len(members)} trajectories; expected one for "
            f"each, in their order"
        )
    return [_compared(member, each) for member, each in zip(members, values, strict=True)]


def _compared(member: GroupMember, value: object) -> Verdict:
    """Verdict of a group function on one member, beside what was known of it."""
    if POINTWISE in member.metrics:
        raise VerifierError(
            f"reward.function returned the metric {POINTWISE!r}, which keeps its reward beside that of reward.group; "
            f"rename it"
        )
    verdict = verdict_of(value)
    metrics = {**member.metrics, POINTWISE: member.reward, **verdict.metrics}
    if not (isinstance(value, Mapping) and "correct" in value):
        metrics["correct"] = member.metrics["correct"]
    answer = member.extracted if verdict.answer is None else verdict.answer
    if problem := problem_of(verdict.reward, metrics, answer):
        raise VerifierError(f"with those of reward.function, the verdict has too much: {problem}")
    return Verdict(verdict.reward, metrics, answer)


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
