r"""
MATH, and what has its form, as a dataset to train on.

    {"problem": "...", "solution": "... so $x = \boxed{\frac{1}{2}}$.", "level": "Level 3", "type": "Algebra"}
        ──▶  answer "\frac{1}{2}"

Source:
    Hendrycks et al. 2021, arXiv:2103.03874. Data source and instruction are verl's, so that results can be compared.
"""

from asyncrl.data.prepare.boxed import last_boxed
from asyncrl.data.prepare.published import Problem, Published, text_of
from asyncrl.data.table import Row
from asyncrl.errors import DataError

ABOUT = ("level", "type", "subject", "unique_id")
"""Columns that say what kind of problem it is; releases of the dataset have some of them."""


def _problem(row: Row) -> Problem:
    problem, solution = text_of(row, "problem", "solution")
    answer = last_boxed(solution)
    if not answer:
        raise DataError(r"its solution has no \boxed{} with an answer in it")
    return Problem(prompt=problem, answer=answer, extra={key: row[key] for key in ABOUT if key in row})


MATH = Published(
    data_source="DigitalLearningGmbH/MATH-lighteval",
    problem=_problem,
    instruction=r"Let's think step by step and output the final answer within \boxed{}.",
)
