"""
Grade-school maths: the number after ``####`` must be the answer's, digit by digit.

The completion is whatever a policy finds to be paid for, so only its tail is searched, and no pattern here can
backtrack: each is a run of characters after a fixed start.
"""

import re
from typing import Literal

from msgspec import Struct

from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""The final answer is at the end; a longer window only finds numbers that were not meant as one."""

NUMBER = r"-?\$?[0-9][0-9,]*(?:\.[0-9]+)?"
STRICT = re.compile(f"#### ({NUMBER})")
FLEXIBLE = re.compile(f"({NUMBER})")


class Gsm8k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the completion ends in the answer, else 0.0.

    Numbers are compared as text, without ``,`` and ``$``: ``1,000`` is ``1000``, but ``18.0`` is not ``18``.

    Source:
        Cobbe et al. 2021, arXiv:2110.14168: solutions end in ``#### `` and the number.
    """

    method: Literal["strict", "flexible"] = "strict"
    """``strict``: the last number after ``#### ``. ``flexible``: the last number, however it is introduced."""

    def __call__(self, sample: VerifierInput, /) -> dict[str, float | str]:
        """Score and number; the answer may be the bare number or a whole worked solution."""
        pattern = STRICT if self.method == "strict" else FLEXIBLE
        found = pattern.findall(sample.completion[-TAIL_CHARS:])
        said = _plain(found[-1]) if found else ""
        return {"score": float(bool(said) and said == _plain(sample.answer.rpartition("####")[2])), "answer": said}


def _plain(number: str) -> str:
    return number.replace(",", "").replace("$", "").strip()
