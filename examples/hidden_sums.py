"""
An environment of your own: `environment.function = "examples/hidden_sums.py:Boxes"`.

    asyncrl toy hidden-sums cache/hidden-sums      (once: the model and its data)
    asyncrl run conf/hidden-sums.toml

The policy is asked for the sum of amounts in closed boxes. It looks into a box (``?``), adds (``!``), and answers:

    Tom a b c How many now?  ─▶  a ? +5  0+5 ! =5   b ? -3  5-3 ! =2   c ? +4  2+4 ! =6   #### 6

Everything else that it says is answered ``error`` if it ends with one of the two marks, and ends the episode if not.
"""

import random
import re

from asyncrl.environment import Said, Step, Task

QUESTION = " How many now?"
ERROR = " error"
MAX_AMOUNT = 5
MAX_TOTAL = 99


class Boxes:
    """
    Boxes of one episode, and an adder.

    Args:
        swapped: Put other amounts into the boxes, so that the answer cannot be found: a control.
        flaky: Probability that a look fails with an error; another look at the same box may succeed.
        compact_every: Turns after which the policy goes on from a summary, in a context of its own; 0: never.
    """

    resume = "replay"  # all chance comes from the seed of the task: the same turns get the same observations

    def __init__(self, *, swapped: bool = False, flaky: float = 0.0, compact_every: int = 0) -> None:
        self._swapped, self._flaky, self._compact_every = swapped, flaky, compact_every

    def reset(self, task: Task) -> None:
        """Fill the boxes; the prompt says all that the policy may know of them."""
        self._chance = random.Random(task.seed)
        self._name, *self._open = task.messages[-1]["content"].removesuffix(QUESTION).split()
        amounts = list(map(int, task.extra["amounts"].split()))
        if self._swapped:
            amounts = other_amounts(len(amounts), self._chance)
        self._amounts = dict(zip(self._open, amounts, strict=True))
        self._answer = task.answer
        self._looked_into = ""
        self._total = 0
        self._num_turns = 0

    def step(self, said: Said) -> Step:
        """Answer a call, or end the episode with its reward."""
        self._num_turns += 1
        match said.text.split():
            case [label, "?"]:
                observation = self._look(label)
            case [terms, "!"]:
                observation = self._add(terms)
            case [*_, "?" | "!"]:
                observation = ERROR
            case words:
                return Step(reward=float(words == ["####", self._answer]), done=True)
        if self._compact_every and self._num_turns % self._compact_every == 0:
            return Step([{"role": "user", "content": self._summary()}], restart=True)
        return Step([{"role": "user", "content": observation}])

    def _look(self, label: str) -> str:
        if label not in self._amounts or self._chance.random() < self._flaky:
            return ERROR
        self._looked_into = label
        return f"{self._amounts[label]:+d}"

    def _add(self, terms: str) -> str:
        """Add two numbers; the box that was looked into last is closed, because its amount is in the total now."""
        found = re.fullmatch(r"(\d+)([+-]\d+)", terms)
        total = int(found[1]) + int(found[2]) if found else -1
        if not 0 <= total <= MAX_TOTAL:
            return ERROR
        self._total = total
        self._open = [label for label in self._open if label != self._looked_into]
        return f"={total}"

    def _summary(self) -> str:
        """Prompt of a new context. A box whose amount was seen and not added is open still."""
        self._looked_into = ""
        return " ".join([f"{self._name} so far {self._total}", *self._open]) + QUESTION


def other_amounts(num_boxes: int, chance: random.Random) -> list[int]:
    """Amounts as in the data: never zero, and no total on the way is negative."""
    amounts: list[int] = []
    for _ in range(num_boxes):
        possible = [a for a in range(-MAX_AMOUNT, MAX_AMOUNT + 1) if a and sum(amounts) + a >= 0]
        amounts.append(chance.choice(possible))
    return amounts
