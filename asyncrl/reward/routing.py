"""
Routing of rows to verifiers by ``data_source``.

    reward.function = "auto"                     by ROUTES; the default
    reward.function = "gsm8k"                    every row to gsm8k
    [[reward.parts]] data_sources = ["aime*"]    each part gets the rows that match; without patterns, every row

A row without a verifier never gets a reward of zero: `unrouted` finds it before the run starts, and its verdict fails.
"""

import difflib
from collections.abc import Awaitable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Any

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import METRICS, OfBatches, resolve, resolve_group
from asyncrl.reward.verifier import Abstained, GroupFunction, Verdict, Verifier, VerifierInput, is_async, verdict_of

AUTO = "auto"

ROUTES = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "numina_*": "math",
    "math_dapo": "math_dapo",
    "math_dapo_reasoning": "math_dapo",
    "math": "math_dapo",
    "aime*": "math_dapo",
    "hiyouga/geometry3k": "geo3k",
    "reasoning_gym/*": "reasoning_gym",
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
    "step_sums": "gsm8k",
    "drawn_squares": "gsm8k",
    "word_problems": "numeric",
}
"""
Pattern of a data source to verifier; no two patterns match the same source.

Source:
    verl's ``default_compute_score``: rows prepared for verl are judged by the same rules here.
    ``reasoning_gym/*`` is that of ``asyncrl data prepare reasoning-gym``; ``step_sums``, ``drawn_squares``
    and ``word_problems`` are those of ``asyncrl toy``.
"""


def route(data_source: str) -> str | None:
    """Name of the built-in verifier that ``auto`` uses for a data source; None if there is none."""
    return next((function for pattern, function in ROUTES.items() if fnmatchcase(data_source, pattern)), None)


def applies(part: RewardPart, data_source: str) -> bool:
    return not part.data_sources or any(fnmatchcase(data_source, pattern) for pattern in part.data_sources)


def unrouted(reward: Reward, data_sources: Iterable[str]) -> list[str]:
    """Return the data sources without a verifier, sorted."""
    return sorted(source for source in set(data_sources) if not _is_routed(reward, source))


def check_routes(reward: Reward, data_sources: Iterable[str]) -> None:
    """Raise `ConfigError` if a data source has no verifier."""
    if left := unrouted(reward, data_sources):
        names = ", ".join(map(repr, left[:5])) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        which = f"with data_source {names}" if any(left) else "without a data_source"
        raise ConfigError(f"no reward is for rows {which}: {_advice(reward, left[0])}")


def auto_routed(reward: Reward, data_sources: Collection[str]) -> list[str]:
    """Names of the verifiers that ``auto`` applies to rows with these data sources, sorted."""
    used = {source for source in data_sources if not reward.parts and reward.function == AUTO}
    for part in reward.parts:
        used |= {source for source in data_sources if part.function == AUTO and applies(part, source)}
    return sorted({name for source in used if (name := route(source))})


def metrics_of(reward: Reward, data_sources: Collection[str]) -> list[str] | None:
    """Metrics that ``reward.function`` returns for rows with these data sources, sorted; None if only a run shows."""
    if reward.parts or reward.group:
        return None
    functions = auto_routed(reward, data_sources) if reward.function == AUTO else [reward.function]
    if any(function not in METRICS for function in functions):
        return None
    return sorted({"correct", *(name for function in functions for name in METRICS[function])})


def unmatched(reward: Reward, data_sources: Collection[str]) -> list[tuple[str, str]]:
    """Name and pattern of each part of the reward whose pattern matches none of these data sources."""
    return [
        (part.name, pattern)
        for part in reward.parts
        for pattern in part.data_sources
        if not any(fnmatchcase(source, pattern) for source in data_sources)
    ]


def no_route(data_source: str) -> str:
    return f"reward function 'auto' knows no verifier for data_source {data_source!r}: {_known(data_source)}"


def _known(data_source: str) -> str:
    close = difflib.get_close_matches(data_source, ROUTES, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}it knows {', '.join(ROUTES)}"


def _is_routed(reward: Reward, source: str) -> bool:
    if not reward.parts:
        return reward.function != AUTO or route(source) is not None
    parts = [part for part in reward.parts if applies(part, source)]
    return bool(parts) and all(part.function != AUTO or route(source) is not None for part in parts)


def _advice(reward: Reward, source: str) -> str:
    parts = [part for part in reward.parts if applies(part, source)]
    if reward.parts and not parts:
        return "add it to data_sources of one of reward.parts, or add a part without data_sources"
    return (
        f"reward.function = 'auto': {_known(source)}; set reward.function ('episode' takes the word of an "
        f"[environment]), or reward.parts with data_sources"
    )


# ── blend ─────────────────────────────────────────────────────────────────────────────────────
# The weighted sum of several verifiers as one verifier.
#
#     [[reward.parts]]         reward    weight
#     accuracy                  1.0   ×  0.9   ┐
#     format                    0.5   ×  0.1   ├─ Σ ─▶ score 0.65, metrics accuracy, format, length
#     length                   -0.3   ×  1.0   ┘
#
# The reward of a part is a metric under the part's name, its other metrics are named ``name.key``. A part that does
# not apply to a row's data source, or abstains, adds nothing; ``name.abstained`` is 1.0 if one that may abstain does,
# and 0.0 if not. If one part fails, or all abstain, the whole verdict fails.


def make_verifier(reward: Reward) -> Verifier:
    """Make the verifier of a run; raises `ConfigError` for functions, options or deadlines that cannot work."""
    if not reward.parts:
        only = resolve(reward.function, reward.options)
        _check_deadlines([only], reward.timeout_s)
        return only
    verifiers = [
        resolve(part.function, part.options, setting=f"reward.parts[{place}].function")
        for place, part in enumerate(reward.parts)
    ]
    _check_deadlines(verifiers, reward.timeout_s)
    return _blend(list(zip(reward.parts, verifiers, strict=True)))


def make_group_function(reward: Reward) -> GroupFunction | None:
    """Load ``reward.group``, if it is set; raises `ConfigError` as `make_verifier`."""
    return resolve_group(reward.group, reward.group_options) if reward.group else None


ABSTAINED = ".abstained"
"""End of the name of a metric that is 1.0 if the part before it abstained."""

Result = dict[str, Any]
"""``score``, ``correct``, ``answer`` and metrics."""


def _blend(parts: Sequence[tuple[RewardPart, Verifier]]) -> Verifier:
    """Blend parts; the result is async, so that inputs are judged concurrently, if a part is."""

    async def judge(inputs: VerifierInput, /) -> Result:
        return await _judge(parts, inputs)

    def judge_in_order(inputs: VerifierInput, /) -> Awaitable[Result]:
        return _judge(parts, inputs)  # awaitable, because a sync function may return an awaitable

    return judge if any(is_async(verifier) for _, verifier in parts) else judge_in_order


async def _judge(parts: Sequence[tuple[RewardPart, Verifier]], inputs: VerifierInput) -> Result:
    source = inputs.data_source
    applying = [(part, verifier) for part, verifier in parts if applies(part, source)]
    found = [(part, await _verdict(part, verifier, inputs)) for part, verifier in applying]
    if not found:
        raise VerifierError(f"no part of the reward is for data_source {source!r}")
    verdicts = [(part, verdict) for part, verdict in found if verdict]
    if not verdicts:
        names = ", ".join(part.name for part, _ in found)
        raise VerifierError(f"every part of the reward abstained ({names}), expected a number of at least one")
    abstained = {
        f"{part.name}{ABSTAINED}": float(verdict is None)
        for (part, verdict), (_, verifier) in zip(found, applying, strict=True)
        if isinstance(verifier, OfBatches)
    }
    return _blended(verdicts) | abstained


async def _verdict(part: RewardPart, verifier: Verifier, inputs: VerifierInput) -> Verdict | None:
    """Verdict of a part; None if it abstains."""
    try:
        value = verifier(inputs)
        return verdict_of(await value if isawaitable(value) else value)
    except Abstained:
        return None
    except VerifierError as error:
        raise VerifierError(f"reward part {part.name!r}: {error}", retryable=error.retryable) from error


def _blended(verdicts: Sequence[tuple[RewardPart, Verdict]]) -> Result:
    metrics: dict[str, Any] = {}
    for part, verdict in verdicts:
        metrics[part.name] = verdict.reward
        metrics |= {f"{part.name}.{key}": value for key, value in verdict.metrics.items() if key != "correct"}
    _, decisive = next((pair for pair in verdicts if pair[0].correct), verdicts[0])
    score = sum(part.weight * verdict.reward for part, verdict in verdicts)
    return metrics | {"score": score, "correct": decisive.metrics["correct"], "answer": decisive.answer}


def _check_deadlines(verifiers: Sequence[Verifier], timeout_s: float) -> None:
    """Let verifiers with a deadline reach it first: their message says more than that of a killed worker."""
    deadlines = [float(getattr(verifier, "deadline_s", 0.0)) for verifier in verifiers]
    if sum(deadlines) >= timeout_s:
        raise ConfigError(
            f"reward.timeout_s is {timeout_s:g} s, but the deadline_s of its verifiers (options, or their "
            f"defaults) add up to {sum(deadlines):g} s; raise timeout_s above that, or lower them"
        )
