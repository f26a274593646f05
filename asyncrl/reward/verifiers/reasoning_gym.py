"""Tasks of reasoning-gym, judged by the package: rows of ``asyncrl data prepare reasoning-gym``."""

import json
import re
from functools import cache
from typing import Any

from msgspec import Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import VerifierInput

SOURCE = "reasoning_gym/"
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    ``score_answer`` of the row's dataset for the text of the last ``<answer>`` element: 0 .. 1, for many datasets with
    partial credit. Without such an element the package judges no answer, which is 0 for nearly all datasets.
    """

    whole: bool = False
    """Without an ``<answer>`` element, the whole completion is the answer."""

    def __post_init__(self) -> None:
        """Import the package now: with the first row it would take too long."""
        try:
            import reasoning_gym  # noqa: F401, PLC0415  optional
        except ImportError as error:
            raise ConfigError(
                f"reasoning_gym needs a library that is not installed ({error}); install asyncrl[reasoning-gym]"
            ) from error

    def __call__(self, inputs: VerifierInput, /) -> dict[str, Any]:
        """Return score and answer; raises `VerifierError` for rows that were not prepared for it."""
        name, entry = inputs.data_source.removeprefix(SOURCE), _entry(inputs)
        found = ANSWER.findall(inputs.completion)
        answer = found[-1].strip() if found else inputs.completion.strip() if self.whole else None
        return {"score": float(_score(name)(answer, entry)), "answer": answer or ""}


@cache
def _score(name: str) -> Any:
    from reasoning_gym import get_score_answer_fn  # noqa: PLC0415  as above

    try:
        return get_score_answer_fn(name)
    except ValueError as error:
        raise VerifierError(f"the row's data_source is {SOURCE}{name}, but {error}") from error


def _entry(inputs: VerifierInput) -> dict[str, Any]:
    text = inputs.extra.get("entry")
    try:
        entry = json.loads(text if isinstance(text, str) else "")
    except ValueError as error:
        raise VerifierError(
            "the row's extra_info has no JSON under 'entry'; make rows with: asyncrl data prepare reasoning-gym"
        ) from error
    if not isinstance(entry, dict):
        raise VerifierError(f"the row's entry is {text!r:.60}, expected an object with question, answer and metadata")
    return entry
