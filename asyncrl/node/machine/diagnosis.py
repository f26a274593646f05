"""What was found out about a machine, for `asyncrl doctor` to print."""

from typing import Literal

from msgspec import Struct

State = Literal["good", "absent", "bad"]


class Line(Struct, frozen=True):
    """One thing that was looked at."""

    section: str
    name: str
    state: State
    """``absent``: the machine does without it. ``bad``: it ought to work and does not."""
    what: str
    """What was found, in a few words."""
    problem: str = ""
    """Of a bad line: what is wrong and what to do, in one sentence."""


class Diagnosis(Struct, frozen=True):
    """Everything that was looked at, in order, and what it comes to."""

    lines: tuple[Line, ...]
    is_fit: bool
    """The machine can do what was asked about."""

    @property
    def problems(self) -> list[str]:
        """Of all bad lines."""
        return [line.problem for line in self.lines if line.state == "bad"]
