"""
The weighted sum of several verifiers as one verifier.

    [[reward.parts]]         reward    weight
    accuracy                  1.0   ×  0.9   ┐
    format                    0.5   ×  0.1   ├─ Σ ─▶ score 0.65, metrics accuracy, format, length
    length                   -0.3   ×  1.0   ┘

The reward of a part is a metric under the part's name, its other metrics are named ``name.key``. A part that does not
apply to a row's data source adds no metric. If one part fails, the whole verdict fails.
"""

from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from typing import Any

from msgspec import Struct

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import applies
from asyncrl.reward.verifier import Verdict, Verifier, VerifierInput, is_async, verdict_of


def make_verifier(reward: Reward) -> Verifier:
    """Make the verifier of a run; raises `ConfigError` for functions, options or deadlines that cannot work."""
    if not reward.parts:
        only = resolve(reward.function, reward.options)
        _check_deadlines([only], reward.timeout_s)
        return only
    parts = [_part(place, part) for place, part in enumerate(reward.parts)]
    _check_deadlines([part.verifier for part in parts], reward.timeout_s)
    return _blend(parts)


Result = dict[str, Any]
"""``score``, ``correct``, ``answer`` and metrics."""


class Part(Struct, frozen=True):
    config: RewardPart
    verifier: Verifier


def _blend(parts: Sequence[Part]) -> Verifier:
    """Blend parts; the result is async, so that inputs are judged concurrently, if a part is."""

    async def judge(inputs: VerifierInput, /) -> Result:
        return await _judge(parts, inputs)

    def judge_in_order(inputs: VerifierInput, /) -> Awaitable[Result]:
        return _judge(parts, inputs)  # awaitable, because a sync function may return an awaitable

    return judge if any(is_async(part.verifier) for part in parts) else judge_in_order


async def _judge(parts: Sequence[Part], inputs: VerifierInput) -> Result:
    source = inputs.data_source
    verdicts = [(part.config, await _verdict(part, inputs)) for part in parts if applies(part.config, source)]
    if not verdicts:
        raise VerifierError(f"no part of the reward is for data_source {source!r}")
    return _blended(verdicts)


async def _verdict(part: Part, inputs: VerifierInput) -> Verdict:
    try:
        value = part.verifier(inputs)
        return verdict_of(await value if isawaitable(value) else value)
    except VerifierError as error:
        raise VerifierError(f"reward part {part.config.name!r}: {error}", retryable=error.retryable) from error


def _blended(verdicts: Sequence[tuple[RewardPart, Verdict]]) -> Result:
    metrics: dict[str, Any] = {}
    for part, verdict in verdicts:
        metrics[part.name] = verdict.reward
        metrics |= {f"{part.name}.{key}": value for key, value in verdict.metrics.items() if key != "correct"}
    _, decisive = next((pair for pair in verdicts if pair[0].correct), verdicts[0])
    score = sum(part.weight * verdict.reward for part, verdict in verdicts)
    return metrics | {"score": score, "correct": decisive.metrics["correct"], "answer": decisive.answer}


def _part(place: int, part: RewardPart) -> Part:
    return Part(part, resolve(part.function, part.options, setting=f"reward.parts[{place}].function"))


def _check_deadlines(verifiers: Sequence[Verifier], timeout_s: float) -> None:
    """Let verifiers with a deadline reach it first: their message says more than that of a killed worker."""
    deadlines = [float(getattr(verifier, "deadline_s", 0.0)) for verifier in verifiers]
    if sum(deadlines) >= timeout_s:
        raise ConfigError(
            f"reward.timeout_s is {timeout_s:g} s, but the deadline_s of its verifiers (options, or their "
            f"defaults) add up to {sum(deadlines):g} s; raise timeout_s above that, or lower them"
        )
