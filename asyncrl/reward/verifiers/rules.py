"""
Verifiers by simple rules: format, length, exact and numeric match, an environment's own word, and the choice by data
source.
"""

import math
import re
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta, Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.answers.final_answer import ASCII, GAP, fits, has_each_once
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import ROUTES, no_route, route
from asyncrl.reward.verifier import Verifier, VerifierInput

# ── format ────────────────────────────────────────────────────────────────────────────────────
# Format check of a completion against a template.


class Format(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the stripped completion, with the thought that its prompt has opened, fits the template, else 0.0."""

    template: str
    """For example ``<think>...</think>...<answer>...</answer>``; ``...`` is any text, or none."""
    once: bool = True
    """A piece that occurs more often than in the template, such as a second ``</think>``, scores 0."""

    def __post_init__(self) -> None:
        if not self.template.replace(GAP, "").strip():
            raise ConfigError(f"format: template is {self.template!r}, which every text fits; put the tags in")

    def __call__(self, inputs: VerifierInput, /) -> float:
        text = f"{inputs.opened}{inputs.completion}".strip()
        return float(fits(self.template, text) and (not self.once or has_each_once(self.template, text)))


# ── length ────────────────────────────────────────────────────────────────────────────────────
# Length penalty that grows linearly with every token.


class Length(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Zero up to ``free`` tokens, then linear down to ``-factor`` at ``max_tokens``.

        score = -factor * clip((tokens - free) / (max_tokens - free), 0, 1)

    `Overlong` is flat up to its buffer and keeps completions below the limit; this one prefers the shorter of two
    equally good completions at every length. Use it as one of several parts of a reward, with a factor below the
    difference between a right and a wrong answer: a larger one rewards wrong, short completions.
    """

    max_tokens: Annotated[int, Meta(ge=1)]
    """Number of tokens with the whole penalty: ``sampling.max_tokens`` of the run."""
    free: Annotated[int, Meta(ge=0)] = 0
    """Number of tokens without a penalty."""
    factor: Annotated[float, Meta(gt=0)] = 0.1
    """Penalty of the longest completion."""

    def __post_init__(self) -> None:
        if self.free >= self.max_tokens:
            raise ConfigError(f"length: free is {self.free}, expected less than max_tokens = {self.max_tokens}")

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        """Return the penalty as ``score``, at most 0; ``correct`` is 1 if there is none."""
        share = (inputs.num_tokens - self.free) / (self.max_tokens - self.free)
        score = -self.factor * min(max(share, 0.0), 1.0)
        return {"score": score, "correct": float(score >= 0)}


# ── overlong ──────────────────────────────────────────────────────────────────────────────────
# Length penalty that grows before the token limit truncates a completion.


class Overlong(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Zero up to ``max_tokens - buffer`` tokens, then linear down to ``-factor`` at ``max_tokens``.

        score = -factor * clip((tokens - (max_tokens - buffer)) / buffer, 0, 1)

    Use it as one of several parts of a reward: alone it rewards empty completions.

    Source:
        Yu et al. 2025, arXiv:2503.14476, eq. 13 (DAPO's soft over-long punishment).
    """

    max_tokens: Annotated[int, Meta(ge=1)]
    """Longest possible completion: ``sampling.max_tokens`` of the run."""
    buffer: Annotated[int, Meta(ge=1)]
    """Number of tokens before ``max_tokens`` over which the penalty grows."""
    factor: Annotated[float, Meta(gt=0)] = 1.0
    """Penalty of the longest completion."""

    def __post_init__(self) -> None:
        if self.buffer > self.max_tokens:
            raise ConfigError(f"overlong: buffer is {self.buffer}, more than max_tokens = {self.max_tokens}")

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        """Return the penalty as ``score``; ``overlong`` is 1 if there is one."""
        exceeded = inputs.num_tokens - (self.max_tokens - self.buffer)
        score = min(0.0, -self.factor * min(exceeded / self.buffer, 1.0))
        return {"score": score, "overlong": float(score < 0), "correct": float(score >= 0)}


# ── exact ─────────────────────────────────────────────────────────────────────────────────────
# Exact match, for tasks whose answer has one spelling.


class Exact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the stripped completion equals the stripped answer, else 0.0."""

    after: str = ""
    """Compare only the text after the last occurrence of this; a completion without it scores 0."""
    ignore_case: bool = False

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score and answer; raises `VerifierError` if the row has no answer."""
        if not (answer := self._normalized(inputs.answer)):
            raise VerifierError("the row has no answer to compare with; repair or drop it")
        _, marker, text = inputs.completion.rpartition(self.after) if self.after else ("", "whole", inputs.completion)
        given = self._normalized(text)
        correct = bool(marker) and given == answer
        return {"score": float(correct), "answer": given if marker else ""}

    def _normalized(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self.ignore_case else text


# ── numeric ───────────────────────────────────────────────────────────────────────────────────
# Numeric match, for answers that may be written or rounded in several ways.

TAIL_CHARS = 300
"""Length of the tail that is searched for the answer."""

NUMBER = re.compile(r"-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""
Runs of characters after a fixed start, so it cannot backtrack. A number may start with its point, but not in the middle
of another number or of an ellipsis.
"""


class Numeric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the last number of the completion equals the answer within the tolerance, else 0.0."""

    tolerance: Annotated[float, Meta(ge=0)] = 1e-6
    """Largest difference, relative to the larger number. To an answer of 0 only 0 is equal."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """Return score and number; raises `VerifierError` if the reference is not a finite number."""
        answer = _number(inputs.answer)
        if answer is None:
            raise VerifierError(f"the answer {inputs.answer[:80]!r} has no finite number in it; repair or drop the row")
        given = _number(inputs.completion[-TAIL_CHARS:])
        if given is None:
            return {"score": 0.0, "answer": ""}
        correct = math.isclose(given, answer, rel_tol=self.tolerance, abs_tol=0.0)
        return {"score": float(correct), "answer": f"{given:.12g}"}


def _number(text: str) -> float | None:
    """Return the last number of a text, or None if there is no finite one; other typesettings of ASCII are that."""
    found = NUMBER.findall(text.translate(ASCII))
    number = float(found[-1].replace(",", "")) if found else math.inf
    return number if math.isfinite(number) else None


# ── episode ───────────────────────────────────────────────────────────────────────────────────
# The environment's own word on an episode.


class EpisodeReward(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Reward of the environment: the sum over the turns, or what its ``score`` returned; of several seats their mean, with
    ``seat_0``, ``seat_1`` ... as metrics. Its metrics are those of the verdict, so an environment whose best reward is
    not 1 sets ``correct``.
    """

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        if inputs.episode_reward is None:
            raise VerifierError("reward function 'episode' got a completion without turns: it needs an [environment]")
        return {**inputs.scores, "score": inputs.episode_reward}


# ── auto ──────────────────────────────────────────────────────────────────────────────────────
# Verifier chosen by each row's data source.


class Auto(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Applies the verifier that `routing.ROUTES` has for the row, with its default options."""

    def __post_init__(self) -> None:
        """Import the verifiers now: with the first row it would take too long."""
        self._verifiers  # noqa: B018

    def __call__(self, inputs: VerifierInput, /) -> Any:
        """Apply it; raises `VerifierError` if there is none for this data source, or its library is not installed."""
        function = route(inputs.data_source)
        if function is None:
            raise VerifierError(no_route(inputs.data_source))
        verifier = self._verifiers[function]
        if isinstance(verifier, ConfigError):
            raise VerifierError(str(verifier))
        return verifier(inputs)

    @cached_property
    def _verifiers(self) -> dict[str, Verifier | ConfigError]:
        """Verifiers, or the errors of loading them, which matter only to rows that need them."""
        return {function: _resolved(function) for function in sorted(set(ROUTES.values()))}


def _resolved(function: str) -> Verifier | ConfigError:
    try:
        return resolve(function)
    except ConfigError as error:
        return error
