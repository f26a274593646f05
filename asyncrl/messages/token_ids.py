"""
Token ids of a model: those that exist, and those that a policy samples.

    asyncrl.weights.contents.token_ids ─▶ TokenIds ─┬─▶ engines, trainers     the others have no probability
                                                    ├─▶ checks of trajectories
                                                    └─▶ Ready ─▶ broker       refuses nodes that have others
"""

import hashlib

from msgspec import Struct


class TokenIds(Struct, frozen=True):
    """Token ids of one model, for its sampler and its trainer alike."""

    vocab_size: int = 0
    """Ids are 0 .. vocab_size - 1, whatever rows the embedding has; 0 if that is not known."""
    never: tuple[int, ...] = ()
    """Ids below `vocab_size` that no policy samples, ascending: places of pictures, and ids without a token."""
    ends: tuple[int, ...] = ()
    """Ids that end a completion, ascending."""

    @property
    def num_sampled(self) -> int:
        return self.vocab_size - len(self.never)

    @property
    def digest(self) -> str:
        """Digest of all fields; empty if they are not known."""
        fields = repr((self.vocab_size, self.never, self.ends)).encode()
        return hashlib.sha256(fields).hexdigest() if self.vocab_size else ""

    def without_probability(self, num_rows: int) -> list[int]:
        """Ids, of the rows of a head, over which no distribution extends: `never`, and the rows that no id has."""
        return [*self.never, *range(self.vocab_size, num_rows)]


UNKNOWN = TokenIds()


def token_ids_of(holder: object) -> TokenIds:
    """Attribute ``token_ids`` of an engine or a policy, which may have one, and need not; `UNKNOWN` without it."""
    found = getattr(holder, "token_ids", None)
    return found if isinstance(found, TokenIds) else UNKNOWN
