"""
One verifier of the several that a run is configured with.

    [[reward.parts]]          score    weight
    accuracy                  1.0   ×  0.9   ┐
    format                    0.5   ×  0.1   ├─ Σ ─▶ score 0.65, metrics accuracy, format, length
    length                   -0.3   ×  1.0   ┘

Each part's own score is a metric under its name, and what else it says one under ``name.key``. A part that is not for a
row's data source leaves no metric there. If one part has no verdict, the row has none.
"""

from collections.abc import Coroutine, Sequence
from inspect import isawaitable
from typing import Any

from msgspec import Struct

from asyncrl.config.sections import Reward, RewardPart
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalog import resolve
from asyncrl.reward.routing import is_for
from asyncrl.reward.verifier import Verdict, Verifier, VerifierInput, is_async, verdict_of


def verifier_of(reward: Reward) -> Verifier:
    """
    The verifier of a run.

    Raises:
        ConfigError: A function cannot be loaded, an option does not fit, or the time limits of the parts do not.
    """
    if not reward.parts:
        only = resolve(reward.function, reward.options)
        _check_deadlines([only], reward.timeout_s)
        return only
    parts = [_part(place, part) for place, part in enumerate(reward.parts)]
    _check_deadlines([part.verifier for part in parts], reward.timeout_s)
    return ConcurrentBlend(parts) if any(is_async(part.verifier) for part in parts) else Blend(parts)


Said = dict[str, Any]
"""As a function returns it: ``score``, ``correct``, ``answer`` and metrics."""


class Part(Struct, frozen=True):
    """A part and its verifier."""

    config: RewardPart
    verifier: Verifier


class Blend:
    """Plain functions: samples are taken in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __call__(self, sample: VerifierInput, /) -> Coroutine[Any, Any, Said]:
        """To be awaited, because a plain function may return something that must be."""
        return _judge(self._parts, sample)


class ConcurrentBlend:
    """At least one function is async: many samples are in hand at once."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    async def __call__(self, sample: VerifierInput, /) -> Said:
        """Score and metrics."""
        return await _judge(self._parts, sample)


async def _judge(parts: Sequence[Part], sample: VerifierInput) -> Said:
    said = [(part.config, await _verdict(part, sample)) for part in parts if is_for(part.config, sample.data_source)]
    if not said:
        raise VerifierError(f"no part of the reward is for data_source {sample.data_source!r}")
    return _blended(said)


async def _verdict(part: Part, sample: VerifierInput) -> Verdict:
    try:
        value = part.verifier(sample)
        return verdict_of(await value if isawaitable(value) else value)
    except VerifierError as error:
        raise VerifierError(f"reward part {part.config.name!r}: {error}", retryable=error.retryable) from error


def _blended(said: Sequence[tuple[RewardPart, Verdict]]) -> Said:
    metrics: dict[str, Any] = {}
    for part, verdict in said:
        metrics[part.name] = verdict.reward
        metrics |= {f"{part.name}.{key}": value for key, value in verdict.metrics.items() if key != "correct"}
    _, decisive = next((pair for pair in said if pair[0].correct), said[0])
    score = sum(part.weight * verdict.reward for part, verdict in said)
    return metrics | {"score": score, "correct": decisive.metrics["correct"], "answer": decisive.answer}


def _part(place: int, part: RewardPart) -> Part:
    return Part(part, resolve(part.function, part.options, setting=f"reward.parts[{place}].function"))


def _check_deadlines(verifiers: Sequence[Verifier], timeout_s: float) -> None:
    """Verifiers that keep a time limit themselves say more of what was late than a killed worker can: let them."""
    deadlines = [float(getattr(verifier, "deadline_s", 0.0)) for verifier in verifiers]
    if sum(deadlines) >= timeout_s:
        raise ConfigError(
            f"reward.timeout_s is {timeout_s:g} s, but the options deadline_s of what it is for come to "
            f"{sum(deadlines):g} s, by default or as set; raise it above that, or lower them"
        )
