"""Durations on the command line: 90s, 30m, 24h, 7d."""

import re

import click

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """A whole number and a unit, in seconds; 0 needs no unit."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float) or value == "0":
            return float(value)
        if not (found := re.fullmatch(r"(\d{1,6})([smhd])", value)):
            self.fail(f"{value!r} is no duration: expected a number and s, m, h or d, such as 24h", param, ctx)
        return float(found[1]) * UNITS_S[found[2]]


DURATION = Duration()
