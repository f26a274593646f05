"""
An environment that shows a picture in mid-episode: coloured squares, once the policy has had a turn.

    prompt        How many?
    policy        anything, which is taken for a look
    environment   <picture> How many red?
    policy        red 1 blue 1 red 2 ... #### 3

Without the picture the policy is right one time in ten.
"""

from asyncrl.environment import Said, Step, Task
from asyncrl.tools.toy.drawn_squares import SquaresProblem, png, problems


class Squares:
    """
    One picture to count in.

    Args:
        swapped: Show another picture than the one that is asked about, so that the reward stays at guessing.
    """

    resume = "replay"

    def __init__(self, swapped: bool = False) -> None:
        self.swapped = swapped

    def reset(self, task: Task) -> None:
        row = task.extra
        self.problem = SquaresProblem(row["asked"], tuple(row["squares"].split()), row["seed"])
        self.has_looked = False

    def step(self, said: Said) -> Step:
        if self.has_looked:
            _, mark, answer = said.text.rpartition("####")
            return Step(reward=float(bool(mark) and answer.split() == [self.problem.answer]), done=True)
        self.has_looked = True
        shown = next(problems(self.problem.seed, "train")) if self.swapped else self.problem
        question = self.problem.prompt.removeprefix("<image>")
        content = [{"type": "image", "data": png(shown)}, {"type": "text", "text": question}]
        return Step(messages=[{"role": "user", "content": content}])
