"""
Routing of rows to verifiers by ``data_source``.

    reward.function = "auto"                     by ROUTES; the default
    reward.function = "gsm8k"                    every row to gsm8k
    [[reward.parts]] data_sources = ["aime*"]    each part gets the rows that match; without patterns, every row

A row without a verifier never gets a reward of zero: `unrouted` finds it before the run starts, and its verdict fails.
"""

import difflib
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import ConfigError

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
