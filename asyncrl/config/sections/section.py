"""Base class of sections, and the types of their fields."""

from functools import cache
from typing import Annotated, get_args, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
_LIMIT = Meta(ge=-1)
Limit = Annotated[int, _LIMIT]
"""Number of which 0 means all, or never; a section converts verl's ``-1`` for the same to 0."""
Ratio = Annotated[int, Meta(ge=1, le=10_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
LIVE = Meta(extra={"live": True})
"""Marks a setting that `asyncrl set` changes while the run goes on; asyncrl/config/live.py."""


@cache
def _limits(section: type[Struct]) -> tuple[str, ...]:
    """Names of the fields of type `Limit`."""
    return tuple(
        name for name, kind in get_type_hints(section, include_extras=True).items() if _LIMIT in get_args(kind)
    )


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of sections: immutable, keyword-only, and an unknown key is an error."""

    def __post_init__(self) -> None:
        for name in _limits(type(self)):
            force_setattr(self, name, max(getattr(self, name), 0))


def listed(values: str | list[str]) -> list[str]:
    """Values of a field that takes one text or several, without empty ones."""
    return [value for value in ([values] if isinstance(values, str) else values) if value]
