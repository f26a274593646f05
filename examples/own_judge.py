"""
A reward by comparison: `reward.group = "examples/own_judge.py:tournament"`.

    asyncrl toy step-sums cache/step-sums                          (once: the model and its data)
    asyncrl run conf/quickstart.toml --set reward.function=examples/own_judge.py:silent \\
        --set reward.group=examples/own_judge.py:tournament

Nothing here gives a reward for a right answer. A judge who has never seen one says of two completions which is worked
out better, and each completion is rewarded with the share of the others that it beats:

    a+5=5 b-3=2 #### 2   beats   a+5=5 b-3=3 #### 3   beats   #### 2
"""

import re
from itertools import combinations

from asyncrl import GroupMember, VerifierInput


def silent(sample: VerifierInput) -> dict[str, float]:
    """Reward each completion with nothing; ``correct`` is measured alone."""
    found = re.search(r"####\s*(-?\d+)\s*$", sample.completion)
    return {"score": 0.0, "correct": float(found is not None and found[1] == sample.answer)}


def tournament(members: list[GroupMember], *, draw: float = 0.5) -> list[dict[str, float]]:
    """
    Let each completion of a prompt meet each other one.

    Args:
        members: Completions of one prompt, in the order of their indices.
        draw: Worth of a draw, where a win is worth 1; set by ``reward.group_options``.

    Returns:
        For each member, in this order: ``score``, its share of all that it could win, and the metric ``wins``.
    """
    points, wins = [0.0] * len(members), [0] * len(members)
    for one, other in combinations(range(len(members)), 2):
        if (better := judge(members[one], members[other])) == 0:
            points[one] += draw
            points[other] += draw
        else:
            winner = one if better > 0 else other
            points[winner] += 1.0
            wins[winner] += 1
    most = max(1, len(members) - 1)
    return [{"score": point / most, "wins": float(won)} for point, won in zip(points, wins, strict=True)]


def judge(one: VerifierInput, other: VerifierInput) -> int:
    """Above 0 if ``one`` is better than ``other``, below 0 if it is worse, 0 if neither is."""
    return right_steps(one) - right_steps(other)


def right_steps(sample: VerifierInput) -> int:
    """Steps up to the first mistake, the last of which states the total that the others have led to."""
    changes = re.findall(r" (\w[+-]\d+)", str(sample.prompt))
    total, rest, num_right = 0, sample.completion, 0
    for change in changes:
        total += int(change[1:])
        step = f"{change}={total} "
        if not rest.lstrip().startswith(step):
            return num_right
        rest, num_right = rest.lstrip()[len(step) :], num_right + 1
    return num_right + (rest.strip() == f"#### {total}")
