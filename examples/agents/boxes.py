"""Boxes whose amounts the policy does not see: ` a ?` looks into one, `0+5 !` adds, ` #### 6` answers."""

import re

ERROR = " error"
MAX_TURNS = 17


class Boxes:
    """
    Args:
        question: Such as ``Tom a b How many now?``; the boxes are its second to fourth last word.
        amounts: One for each box, such as ``+5 -3``.
    """

    def __init__(self, question: str, amounts: str) -> None:
        labels = question.split()[1:-3]
        self._amounts = dict(zip(labels, amounts.split(), strict=True))

    def answer(self, said: str) -> str | None:
        """What the policy reads after its turn; None once it has answered."""
        match said.split():
            case [label, "?"]:
                return self._amounts.get(label, ERROR)
            case [*terms, "!"]:
                found = re.fullmatch(r"(\d+)([+-]\d+)", "".join(terms))
                total = int(found[1]) + int(found[2]) if found else -1
                return f"={total}" if 0 <= total < 100 else ERROR
            case [*_, "?"]:
                return ERROR
        return None


def is_right(said: str, answer: str) -> bool:
    return said.split() == ["####", answer]
