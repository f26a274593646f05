"""A policy that solves hidden sums: the next turn after the contents of a chat, prompt first."""

from collections.abc import Sequence

QUESTION = " How many now?"


def next_turn(contents: Sequence[str]) -> str:
    """Add what was looked at, or look into the next box, or answer."""
    prompt, *rest = contents
    opening, _, so_far = prompt.removesuffix(QUESTION).partition(" so far ")
    total, *left = so_far.split() if so_far else ["0", *opening.split()[1:]]
    amount = ""
    for heard in rest[1::2]:
        if heard.startswith("="):
            total, amount = heard[1:], ""
            left.pop(0)
        elif heard != " error":
            amount = heard
    if amount:
        return f"{total}{amount} !"
    return f" {left[0]} ?" if left else f" #### {total}"
