"""
A reward of your own: `reward.function = "examples/own_reward.py:score"`.

    asyncrl toy step-sums cache/step-sums                          (once: the model and its data)
    asyncrl run conf/quickstart.toml --set reward.function=examples/own_reward.py:score --set reward.options.bonus=0.1
"""

import re

from asyncrl import VerifierInput


def score(sample: VerifierInput, *, bonus: float = 0.0) -> dict[str, float]:
    """
    Grade the number after ``####``, with a bonus for showing at least one step.

    Args:
        sample: Prompt, completion and reference answer.
        bonus: Added where a step is shown; set by ``reward.options``.

    Returns:
        ``score`` is the reward. ``correct`` is averaged into accuracy. Other numbers become metrics.
    """
    found = re.search(r"####\s*(-?\d+)\s*$", sample.completion.strip())
    correct = float(found is not None and found[1] == sample.answer.rpartition("####")[2].strip())
    has_steps = float("=" in sample.completion)
    return {"score": correct + bonus * has_steps, "correct": correct, "shows_steps": has_steps}
