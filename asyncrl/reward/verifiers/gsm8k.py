"""
GSM8K's reward: the number after ``####``, compared digit by digit as verl compares it.

Completions are hostile, so only the tail is searched, and no pattern here can backtrack: each is a run of characters
after a fixed start.
"""

import re
from typing import Literal

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput

TAIL_CHARS = 300
"""Length of the tail that is searched; a longer one only finds numbers that are not the final answer."""

NUMBER = r"[-−]?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)"
"""A number may start with its point, but not in the middle of another number or of an ellipsis."""
STRICT = re.compile(f"#### ({NUMBER})")
FLEXIBLE = re.compile(f"({NUMBER})")
POINT_FIRST = re.compile(r"(?<=^-)\.|^\.")


class Gsm8k(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    1.0 if the completion ends in the answer, else 0.0.

    Numbers are compared as text, without ``,`` and ``$``: ``1,000`` is ``1000`` and ``.5`` is ``0.5``, but ``18.0`` is
    not ``18``. A typeset minus (U+2212) is a minus.

    Source:
        Cobbe et al. 2021, arXiv:2110.14168: solutions end in ``#### `` and the number.
    """

    method: Literal["strict", "flexible"] = "strict"
    """``strict``: the last number after ``#### ``. ``flexible``: the last number anywhere."""

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float | str]:
        """
        Return score and number; ``inputs.answer`` may be the bare number or a whole worked solution.

        Raises:
            VerifierError: The row has no answer.
        """
        pattern = STRICT if self.method == "strict" else FLEXIBLE
        found = pattern.findall(inputs.completion[-TAIL_CHARS:])
        given = _normalized(found[-1]) if found else ""
        answer = _normalized(inputs.answer.rpartition("####")[2])
        if not answer:
            raise VerifierError("the row has no answer to compare with; repair or drop it")
        correct = given == answer
        return {"score": float(correct), "answer": given}


def _normalized(number: str) -> str:
    bare = number.replace(",", "").replace("$", "").replace("−", "-").strip()
    return POINT_FIRST.sub("0.", bare)
