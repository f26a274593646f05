"""
The one conversion of numbers that programs of users return: rewards, metrics, ``correct``, flags.

Needs nothing but Python, because environments run under the interpreter of their user.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any


def number(value: Any) -> float | None:
    """
    Convert what is one number: of Python, ``decimal``, numpy or torch, bools and arrays of one element included.

    Returns:
        None for anything else, text and arrays of several elements included; an infinity for what no float can hold.
    """
    found: Any = scalar(value)
    if not isinstance(found, (Real, Decimal)):
        return None
    try:
        return float(found)
    except OverflowError:
        return -math.inf if found < 0 else math.inf
    except ValueError:  # a signalling NaN of decimal
        return math.nan


def scalar(value: Any) -> Any:
    """Return the element of a scalar, or of an array of one element, as numpy and torch have them; else the value."""
    if isinstance(value, (Real, Decimal)) or not callable(item := getattr(value, "item", None)):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):  # an array of several
        return value
