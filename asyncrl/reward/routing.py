"""
Which verifier a row is for, by its ``data_source``.

    reward.function = "gsm8k"                    every row
    reward.function = "auto"                     as ROUTES has it
    [[reward.parts]] data_sources = ["aime*"]    every part whose patterns fit; one without patterns is for every row

A row that nothing is for is never given a zero: `unrouted` finds it before anything starts, and the verifier fails it.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from asyncrl.config.sections import Reward, RewardPart
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint

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
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
}
"""
Pattern of a data source to verifier; no two patterns fit the same source.

Source:
    verl's ``default_compute_score``: rows that were prepared for it are judged by the same rules here.
"""


def route(data_source: str) -> str | None:
    """The built-in verifier that ``auto`` takes for rows of a data source; None if it knows none."""
    return next((function for pattern, function in ROUTES.items() if fnmatchcase(data_source, pattern)), None)


def is_for(part: RewardPart, data_source: str) -> bool:
    """Whether a part judges rows of this data source."""
    return not part.data_sources or any(fnmatchcase(data_source, pattern) for pattern in part.data_sources)


def unrouted(reward: Reward, data_sources: Iterable[str]) -> list[str]:
    """The data sources whose rows could not be judged, sorted."""
    return sorted(source for source in set(data_sources) if not _is_routed(reward, source))


def check_routes(reward: Reward, data_sources: Iterable[str]) -> None:
    """
    Refuse a dataset with rows that no verifier is for.

    Raises:
        ConfigError: Names the data sources, and what to do.
    """
    if left := unrouted(reward, data_sources):
        names = ", ".join(map(repr, left[:5])) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        raise ConfigError(f"no reward is for rows with data_source {names}: {_advice(reward, left[0])}")


def no_route(data_source: str) -> str:
    """What is said of a row that ``auto`` knows no verifier for."""
    return f"reward function 'auto' knows no verifier for data_source {data_source!r}: {hint(data_source, ROUTES)}"


def _is_routed(reward: Reward, source: str) -> bool:
    if not reward.parts:
        return reward.function != AUTO or route(source) is not None
    parts = [part for part in reward.parts if is_for(part, source)]
    return bool(parts) and all(part.function != AUTO or route(source) is not None for part in parts)


def _advice(reward: Reward, source: str) -> str:
    parts = [part for part in reward.parts if is_for(part, source)]
    if reward.parts and not parts:
        return "add it to data_sources of one of reward.parts, or add a part without data_sources"
    return f"{no_route(source)}; set reward.function, or reward.parts with data_sources, yourself"
