r"""
MATH, and datasets of the same form.

    {"problem": "...", "solution": "... so $x = \boxed{\frac{1}{2}}$.", "level": "Level 3", "type": "Algebra"}
        ──▶  answer "\frac{1}{2}"

Source:
    Hendrycks et al. 2021, arXiv:2103.03874. Data source and instruction are verl's, to make results comparable.
"""

from asyncrl.data.prepare.boxed import last_boxed
from asyncrl.data.prepare.published import Problem, PublishedDataset, text_of
from asyncrl.data.table import Row
from asyncrl.errors import DataError

DESCRIPTION = ("level", "type", "subject", "unique_id")
"""Columns that describe the problem; each release of the dataset has some of them."""


def _problem(row: Row) -> Problem:
    problem, solution = text_of(row, "problem", "solution")
    answer = last_boxed(solution)
    if not answer:
        raise DataError(r"its solution has no \boxed{} with an answer in it")
    return Problem(prompt=problem, answer=answer, extra={key: row[key] for key in DESCRIPTION if key in row})


MATH = PublishedDataset(
    data_source="DigitalLearningGmbH/MATH-lighteval",
    problem=_problem,
    instruction=r"Let's think step by step and output the final answer within \boxed{}.",
)
