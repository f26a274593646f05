"""
GSM8K.

    {"question": "...", "answer": "She sold 48 / 2 = 24 ... #### 72"}  ──▶  answer "72"

Source:
    Cobbe et al. 2021, arXiv:2110.14168. Instruction and extra information are verl's, to make results comparable.
"""

import re

from asyncrl.data.prepare.published import Problem, PublishedDataset, text_of
from asyncrl.data.table import Row
from asyncrl.errors import DataError

_FINAL = re.compile(r"#### (-?\d[\d,]*(?:\.\d+)?)\s*$")


def _problem(row: Row) -> Problem:
    question, solution = text_of(row, "question", "answer")
    final = _FINAL.search(solution)
    if final is None:
        raise DataError(f"the answer must end in '#### ' and a number, but ends in {solution[-20:]!r}")
    answer = final[1].replace(",", "")
    return Problem(prompt=question, answer=answer, extra={"answer": solution, "question": question})


GSM8K = PublishedDataset(
    data_source="openai/gsm8k",
    problem=_problem,
    instruction='Let\'s think step by step and output the final answer after "####".',
)
