"""
Word problems: one sum or difference of small numbers, told in one of many ways, for a model that reads English.

    user        Kim has 14 nuts and buys 3 more. How many nuts does Kim have now?       the same in all prompts
    assistant   14 + 3 = 17
    user        Tom has 13 apples and buys 8 more. How many apples does Tom have now?
    answer      21

The example shows an answer of a few words. Without it a small model begins to explain, and does not come to a number
within a dozen tokens.

Invariants:
* Both numbers are at least 2, and no answer is negative or zero.
* The split of a problem depends on its calculation alone, not on its words, so no calculation is in both splits; the
  numbers of a sum are in it in either order.
"""

import random
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.data.prepare.published import write as write_parquet
from asyncrl.messages.words import Split

Sign = Literal["+", "-"]
STORIES: dict[Sign, tuple[str, ...]] = {
    "+": (
        "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
        "{name} had {a} {things} and found {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things}. {other} gives {name} {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things} and {other} has {b} {things}. How many {things} do they have together?",
        "There are {a} {things} in a box. {name} puts in {b} more. How many {things} are in the box?",
        "There are {a} {things} in a red bag and {b} {things} in a blue bag. How many {things} are there in total?",
        "{name} counted {a} {things} on Monday and {b} on Tuesday. How many {things} did {name} count in total?",
        "A shop had {a} {things} and got {b} more. How many {things} does the shop have now?",
        "{name} sold {a} {things} in the morning and {b} in the afternoon. How many {things} did {name} sell?",
        "{name} has {a} {things}. {other} has {b} more than {name}. How many {things} does {other} have?",
        "{name} put {a} {things} on one shelf and {b} on another. How many {things} are on the shelves?",
        "After {name} gave away {b} {things}, {a} were left. How many {things} did {name} have before?",
    ),
    "-": (
        "{name} had {a} {things} and gave away {b}. How many {things} does {name} have left?",
        "{name} had {a} {things} and lost {b} of them. How many {things} does {name} have left?",
        "{name} has {a} {things} and sells {b} of them. How many {things} are left?",
        "There were {a} {things} in a box. {name} took out {b}. How many {things} are left in the box?",
        "A shop had {a} {things} and sold {b}. How many {things} are left in the shop?",
        "{name} needs {a} {things} and has {b}. How many more {things} does {name} need?",
        "{name} has {a} {things} and {other} has {b}. How many more {things} does {name} have than {other}?",
        "{name} has {a} {things}. {other} has {b} fewer than {name}. How many {things} does {other} have?",
        "Of {a} {things}, {b} are broken. How many {things} are not broken?",
        "{name} and {other} have {a} {things} together. {other} has {b} of them. How many {things} does {name} have?",
        "{name} bought {b} {things} and has {a} now. How many {things} did {name} have before?",
        "There are {a} {things} on a table, and {b} of them are {name}'s. How many {things} are not {name}'s?",
    ),
}
EXAMPLE = ("Kim has 14 nuts and buys 3 more. How many nuts does Kim have now?", "14 + 3 = 17")
NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe", "Ben", "Lucy", "Paul", "Emma")
THINGS = ("apples", "books", "coins", "eggs", "pens", "cards", "stamps", "shells", "cups", "balls", "stones", "plates")
MAX_FIRST, MAX_SECOND = 20, 9
"""Largest numbers: a small model can add and subtract them, and larger ones are another lesson."""
LEAST = 2

DATA_SOURCE = "word_problems"
NUM_ROWS: dict[Split, int] = {"train": 4096, "held_out": 256}


class WordProblem(Struct, frozen=True):
    """A story of two numbers."""

    story: str
    """One of the `STORIES` of ``sign``."""
    sign: Sign
    a: int
    b: int
    """Added to ``a``, or subtracted from it."""
    name: str
    other: str
    things: str

    @property
    def question(self) -> str:
        return self.story.format(a=self.a, b=self.b, name=self.name, other=self.other, things=self.things)

    @property
    def prompt(self) -> list[dict[str, str]]:
        """Chat of the example and the question."""
        asked, answered = EXAMPLE
        return [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answered},
            {"role": "user", "content": self.question},
        ]

    @property
    def answer(self) -> str:
        return str(self.a + self.b if self.sign == "+" else self.a - self.b)

    @property
    def calculation(self) -> str:
        """Key of the calculation, the same for a sum in either order."""
        a, b = (max(self.a, self.b), min(self.a, self.b)) if self.sign == "+" else (self.a, self.b)
        return f"{a}{self.sign}{b}"

    @property
    def split(self) -> Split:
        """Split by a checksum of the calculation, the same on every machine: one in five is held out."""
        return "held_out" if zlib.crc32(self.calculation.encode()) % 5 == 0 else "train"


def problems(seed: int, split: Split) -> Iterator[WordProblem]:
    """Yield problems of one split, endlessly, half of them sums."""
    rng = random.Random(f"word problems {split} {seed}")
    while True:
        sign: Sign = rng.choice(("+", "-"))
        problem = _draw(rng, sign)
        while problem.split != split:
            problem = _draw(rng, sign)
        yield problem


def write(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """Write problems of one split as parquet with ``prompt``, ``answer`` and ``data_source``; `NUM_ROWS` by default."""
    drawn = islice(problems(seed, split), num_rows or NUM_ROWS[split])
    rows = [{"prompt": problem.prompt, "answer": problem.answer, "data_source": DATA_SOURCE} for problem in drawn]
    write_parquet(rows, path)


def _draw(rng: random.Random, sign: Sign) -> WordProblem:
    b = rng.randint(LEAST, MAX_SECOND)
    a = rng.randint(b + 1 if sign == "-" else LEAST, MAX_FIRST)
    name, other = rng.sample(NAMES, 2)
    return WordProblem(rng.choice(STORIES[sign]), sign, a, b, name, other, rng.choice(THINGS))
