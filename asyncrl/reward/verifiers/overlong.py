"""A price for getting long, before the limit cuts the completion off."""

from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import ConfigError
from asyncrl.reward.verifier import VerifierInput


class Overlong(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Zero up to ``max_tokens - buffer`` tokens, then falling in a straight line to ``-factor`` at ``max_tokens``.

        score = min(0, -factor * (tokens - (max_tokens - buffer)) / buffer)

    Meant as one of several parts of a reward: alone it pays for silence.

    Source:
        Yu et al. 2025, arXiv:2503.14476, eq. 13 (DAPO's soft over-long punishment).
    """

    max_tokens: Annotated[int, Meta(ge=1)]
    """Longest completion there can be; ``sampling.max_tokens`` of the run."""
    buffer: Annotated[int, Meta(ge=1)]
    """Tokens before the end over which the price rises."""
    factor: Annotated[float, Meta(gt=0)] = 1.0
    """Price of the longest completion."""

    def __post_init__(self) -> None:
        """Refuse a buffer longer than all there is."""
        if self.buffer > self.max_tokens:
            raise ConfigError(f"overlong: buffer is {self.buffer}, more than max_tokens = {self.max_tokens}")

    def __call__(self, sample: VerifierInput, /) -> dict[str, float]:
        """The price as ``score``; ``overlong`` is 1 where there is one."""
        exceeded = sample.num_tokens - (self.max_tokens - self.buffer)
        score = min(0.0, -self.factor * exceeded / self.buffer)
        return {"score": score, "overlong": float(score < 0), "correct": float(score >= 0)}
