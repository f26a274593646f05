"""
An episode turn by turn, for the terminal and the report.

    turn 0              look                             7 tokens
    turn 1              left 2 ─▶ 4                      reward 0.5, 3 tokens after 5, 0.25 s
    turn 2, after 0     left 2 ─▶ 5                      a branch
    turn 3, own context a summary ─▶ 6                   what begins anew, such as a sub-agent
    turn 4 of seat 1, after 1                            what another seat of the policy says
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from asyncrl.messages.sound import num_branches
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn, seat_rewards
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
    has_seats = any(turn.seat for turn in turns)
    for place, turn in enumerate(turns):
        title = _title(turn, place, has_seats=has_seats)
        yield TurnView(title=title, observation=turn.observation, text=turn.text, facts=_facts(turn))


def summary(turns: Sequence[Turn]) -> str:
    """
    Size of an episode and what its environment gave.

    Example:
        4 turns in 3 branches, 31 tokens of the policy and 18 of the environment, 0.4 s, turn rewards 0.5

    Seats that a policy has beside seat 0 are told with their rewards: ``turn rewards 1 of seat 0, -1 of seat 1``.
    """
    branches = f" in {count} branches" if (count := num_branches(turns)) > 1 else ""
    written, context = sum(turn.num_written for turn in turns), sum(turn.num_context for turn in turns)
    call_s, rewards = sum(turn.call_s for turn in turns), seat_rewards(turns)
    told = ", ".join(f"{reward:.4g}" + (f" of seat {seat}" if any(rewards) else "") for seat, reward in rewards.items())
    return (
        f"{counted(len(turns), 'turn')}{branches}, {counted(written, 'token')} of the policy and {context} of the "
        f"environment, {call_s:.2g} s, turn rewards {told or 0}"
    )


def _title(turn: Turn, place: int, *, has_seats: bool) -> str:
    name = f"turn {place} of seat {turn.seat}" if has_seats else f"turn {place}"
    if turn.parent == place - 1:
        return name
    if turn.parent == FROM_NOTHING:
        return f"{name}, own context"
    return f"{name}, after {'the prompt' if turn.parent == FROM_PROMPT else turn.parent}"


def _facts(turn: Turn) -> str:
    after = f" after {turn.num_context}" if turn.num_context else ""
    facts = [f"reward {turn.reward:.4g}"] if turn.reward else []
    facts.append(f"{counted(turn.num_written, 'token')}{after}")
    facts += [f"{turn.call_s:.2g} s"] if turn.call_s else []
    facts += [] if turn.is_trained else ["not trained"]
    return ", ".join(facts)
