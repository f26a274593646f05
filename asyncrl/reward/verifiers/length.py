"""Length penalty that grows linearly with every token."""

from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import ConfigError
from asyncrl.reward.verifier import VerifierInput


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
