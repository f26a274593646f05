"""
Self-play of two seats of one policy: `environment.function = "examples/signals.py:Signals"`, with `seats = 2`.

    asyncrl toy hidden-sums cache/hidden-sums      (once: the model, which knows no code)
    asyncrl run conf/self-play.toml

Seat 0 reads a name and says a number. Seat 1 reads the letter of that number, never the name, and has to say which name
it was. No number means a name before the two have agreed on it:

    seat 0      Ann a b How many now?  ─▶  #### 7
    seat 1      Zoe h How many now?    ─▶  #### 1          both get 1, because Ann is name 1

If the speaker is paid alone, nobody learns to listen, and whatever it says is not understood.
"""

from asyncrl.environment import Said, Step, Task

NAMES = ("Tom", "Ann")
LETTERS = "abcd"
SHARES = {"both": [1.0, 1.0], "speaker": [1.0, 0.0]}


class Signals:
    """
    One name to be told.

    Args:
        paid: Seats that are rewarded for a name that was understood: ``both``, or as a control the ``speaker``.
    """

    resume = "replay"

    def __init__(self, *, paid: str = "both") -> None:
        self._shares = SHARES[paid]
        self._is_right = False

    def reset(self, task: Task) -> Step:
        """Tell seat 0 the name; the rows are those of the hidden sums, of which only the answer is read."""
        self._name = int(task.answer) % len(NAMES)
        return _read(f"{NAMES[self._name]} a b", seat=0)

    def step(self, said: Said) -> Step:
        """Pass the number on to seat 1, or judge what that has made of it."""
        words = said.text.split()
        number = int(words[1]) if len(words) == 2 and words[0] == "####" and words[1].isdecimal() else -1
        if said.seat == 0 and number >= 0:
            return _read(f"Zoe {LETTERS[number % len(LETTERS)]}", seat=1)
        self._is_right = said.seat == 1 and number == self._name
        return Step(reward=[share * self._is_right for share in self._shares], done=True)

    def score(self) -> dict[str, float]:
        """Whether the name was understood, whoever is paid for it."""
        return {"correct": float(self._is_right)}


def _read(text: str, *, seat: int) -> Step:
    """All that a seat reads."""
    return Step([{"role": "user", "content": f"{text} How many now?"}], seat=seat, restart=True)
