"""Length penalty that grows before the token limit truncates a completion."""

from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import ConfigError
from asyncrl.reward.verifier import VerifierInput


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
