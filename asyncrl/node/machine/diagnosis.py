"""The result of `asyncrl doctor`: one line per check."""

from typing import Literal

from msgspec import Struct

State = Literal["good", "absent", "bad"]


class Line(Struct, frozen=True):
    """Result of one check."""

    section: str
    name: str
    state: State
    """``absent``: missing but not required. ``bad``: required or expected to work, and does not."""
    what: str
    """The finding, in a few words."""
    problem: str = ""
    """One sentence about the problem of a bad line and its remedy."""


class Diagnosis(Struct, frozen=True):
    """Results of all checks, in order."""

    lines: tuple[Line, ...]
    is_fit: bool
    """True if the machine can run the requested role, or any role if none was requested."""

    @property
    def problems(self) -> list[str]:
        """A sentence for each problem, once if several checks met it."""
        return list(dict.fromkeys(line.problem for line in self.lines if line.state == "bad"))
