"""
An episode turn by turn, for the terminal and the report.

    turn 0              look                             7 tokens
    turn 1              left 2 ─▶ 4                      reward 0.5, 3 tokens after 5, 0.25 s
    turn 2, after 0     left 2 ─▶ 5                      a branch
    turn 3, own context a summary ─▶ 6                   what begins anew, such as a sub-agent
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from asyncrl.messages.sound import num_branches
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn
from asyncrl.records.formatting import counted


class TurnView(Struct, frozen=True, kw_only=True):
    """One turn as people read it."""

    title: str
    """Number of the turn, and what it follows unless that is the turn before."""
    observation: str
    """Text of the environment before it."""
    text: str
    """Text of the policy."""
    facts: str
    """Reward, tokens and seconds."""


def views(turns: Sequence[Turn]) -> Iterator[TurnView]:
    """Every turn, in the order written."""
    for place, turn in enumerate(turns):
        yield TurnView(title=_title(turn, place), observation=turn.observation, text=turn.text, facts=_facts(turn))


def summary(turns: Sequence[Turn]) -> str:
    """
    Size of an episode and what its environment gave.

    Example:
        4 turns in 3 branches, 31 tokens of the policy and 18 of the environment, 0.4 s, turn rewards 0.5
    """
    branches = f" in {count} branches" if (count := num_branches(turns)) > 1 else ""
    written, context = sum(turn.num_written for turn in turns), sum(turn.num_context for turn in turns)
    call_s, reward = sum(turn.call_s for turn in turns), sum(turn.reward for turn in turns)
    return (
        f"{counted(len(turns), 'turn')}{branches}, {counted(written, 'token')} of the policy and {context} of the "
        f"environment, {call_s:.2g} s, turn rewards {reward:.4g}"
    )


def _title(turn: Turn, place: int) -> str:
    if turn.parent == place - 1:
        return f"turn {place}"
    if turn.parent == FROM_NOTHING:
        return f"turn {place}, own context"
    return f"turn {place}, after {'the prompt' if turn.parent == FROM_PROMPT else turn.parent}"


def _facts(turn: Turn) -> str:
    after = f" after {turn.num_context}" if turn.num_context else ""
    facts = [f"reward {turn.reward:.4g}"] if turn.reward else []
    facts.append(f"{counted(turn.num_written, 'token')}{after}")
    facts += [f"{turn.call_s:.2g} s"] if turn.call_s else []
    facts += [] if turn.is_trained else ["not trained"]
    return ", ".join(facts)
