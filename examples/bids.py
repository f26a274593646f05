"""
Self-play of two seats of one policy: `environment.function = "examples/bids.py:Bids"`, with `seats = 2`.

    asyncrl toy hidden-sums cache/hidden-sums      (once: the model, which guesses numbers)
    asyncrl run conf/self-play.toml

Each seat says a number from 0 to 9, and neither reads the other's. The higher one gets 1 and the lower one -1:

    seat 0      Tom a b How many now?  ─▶  #### 4         -1
    seat 1      Ann a b How many now?  ─▶  #### 7          1

What is a good number depends on the other seat, which learns as well: the numbers rise until both say 9. The mean of
the two rewards is always 0, so a policy that is trained on it learns nothing.
"""

from asyncrl.environment import Said, Step, Task

NAMES = ("Tom", "Ann")
HIGHEST = 9


class Bids:
    """
    One number of each seat.

    Args:
        shared: Give both seats the mean of their rewards, in place of its own to each: a control.
    """

    resume = "replay"

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._bids: list[int] = []

    def reset(self, task: Task) -> Step:
        """Ask seat 0. The rows are those of the hidden sums, and nothing of them is read."""
        self._bids = []
        return self._ask(0)

    def step(self, said: Said) -> Step:
        """Ask seat 1, or compare the two numbers."""
        self._bids.append(bid_of(said.text))
        if said.seat == 0:
            return self._ask(1)
        first, second = self._bids
        won = float((first > second) - (first < second))
        return Step(reward=[0.0, 0.0] if self._shared else [won, -won], done=True)

    def score(self) -> dict[str, float]:
        """Metrics alone: the rewards are those of the last step."""
        return {"correct": float(self._bids == [HIGHEST, HIGHEST]), "bid": sum(self._bids) / max(len(self._bids), 1)}

    def _ask(self, seat: int) -> Step:
        """All that a seat reads."""
        message = {"role": "user", "content": f"{NAMES[seat]} a b How many now?"}
        return Step([message], seat=seat, restart=True)


def bid_of(text: str) -> int:
    """Return the number that a seat said; -1, which beats nothing, if it is none from 0 to 9."""
    match text.split():
        case ["####", word] if word.isdecimal() and int(word) <= HIGHEST:
            return int(word)
    return -1
