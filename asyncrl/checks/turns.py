"""
Check of an episode's turns: a tree whose tokens are those of the trajectory.

    turns     parent  -1   0   0   2        context_ids      a a │ b │ c c │ d
    branches          0 ─┬─ 1               completion_ids   x x x │ y │ z │ w w
                         └─ 2 ── 3          one part for each turn, in the order written

    "cause: what was found, and expected", or "" as `asyncrl.checks.trajectory.problem_of`
"""

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

from asyncrl.checks.reward_limits import MAX_METRIC, MAX_METRICS, MAX_NAME_CHARS, MAX_REWARD, name_problem
from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import FROM_NOTHING, Trajectory, TrajectoryLimits, Turn

BAD_TURNS = "turns that do not fit the tokens"
BAD_SCORES = "impossible metrics of the environment"

MAX_CHARS = 1024
"""Characters of text per token; the longest tokens of known vocabularies have a few hundred."""


def turn_problem_of(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    """Reason to refuse a trajectory's turns, context or metrics; empty if there is none."""
    turns, is_unfinished = trajectory.turns, trajectory.finish_reason == "unfinished"
    if not turns:
        if trajectory.context_ids or trajectory.scores or trajectory.snapshot:
            return f"{BAD_TURNS}: none, expected some, because there is context, a metric or a snapshot"
        missing = f"{BAD_TURNS}: none, expected 1 .. {limits.max_turns} (environment.max_turns)"
        return missing if limits.max_turns and not is_unfinished else ""
    if limits.max_turns is not None and len(turns) > limits.max_turns:
        return f"{BAD_TURNS}: {len(turns)} turns, expected at most {limits.max_turns} (environment.max_turns)"
    if trajectory.snapshot and not is_unfinished:
        return f"{BAD_TURNS}: a snapshot of {trajectory.snapshot.nbytes} bytes, expected none of a finished episode"
    for place, turn in enumerate(turns):
        if problem := _problem_of_turn(turn, place):
            return f"{BAD_TURNS}: turn {place} has {problem}"
    context, written = sum(turn.num_context for turn in turns), sum(turn.num_written for turn in turns)
    if 4 * context != trajectory.context_ids.nbytes or 4 * written != trajectory.completion_ids.nbytes:
        tokens = (
            f"{trajectory.context_ids.nbytes / 4:g} of context and {trajectory.completion_ids.nbytes / 4:g} written"
        )
        return f"{BAD_TURNS}: {context} tokens of context and {written} written, expected {tokens}"
    return _score_problem(trajectory)


class HasParent(Protocol):
    """A turn, on the wire or in the record of a rollout."""

    @property
    def parent(self) -> int: ...


def path_to(turns: Sequence[HasParent], place: int) -> list[int]:
    """Indices of the turns from a root to ``place``, which is the last; empty for the prompt, or for nothing."""
    found = []
    while place >= 0:
        found.append(place)
        place = turns[place].parent
    return found[::-1]


def num_branches(turns: Sequence[Turn]) -> int:
    """Turns that no other turn follows; 1 for a trajectory without turns."""
    return len(turns) - len({turn.parent for turn in turns if turn.parent >= 0}) if turns else 1


def _problem_of_turn(turn: Turn, place: int) -> str:
    if not FROM_NOTHING <= turn.parent < place:
        return f"parent {turn.parent}, expected {FROM_NOTHING} .. {place - 1}"
    least = int(turn.parent == FROM_NOTHING)  # the policy must have read something
    if turn.num_context < least or turn.num_written < 1:
        return f"{turn.num_context} tokens of context and {turn.num_written} written, expected {least} and 1 or more"
    if not -MAX_REWARD <= turn.reward <= MAX_REWARD:  # NaN compares false too
        return f"reward {turn.reward}, expected a finite number of at most {MAX_REWARD:g} either way"
    if not (turn.call_s >= 0.0 and isfinite(turn.call_s)):
        return f"{turn.call_s} s of its environment, expected a finite number, 0 or more"
    if len(turn.observation) > turn.num_context * MAX_CHARS or len(turn.text) > turn.num_written * MAX_CHARS:
        return f"{len(turn.observation)} and {len(turn.text)} characters, expected at most {MAX_CHARS} for each token"
    return ""


def _score_problem(trajectory: Trajectory) -> str:
    if len(trajectory.scores) > MAX_METRICS:
        return f"{BAD_SCORES}: {len(trajectory.scores)}, expected at most {MAX_METRICS}"
    for name, value in trajectory.scores.items():
        if name_problem(name) or not -MAX_METRIC <= value <= MAX_METRIC:
            found = f"{shown(name, MAX_NAME_CHARS)!r} is {value}"
            return f"{BAD_SCORES}: {found}, expected a short name that can be shown and a finite number"
    return ""
