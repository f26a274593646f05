"""Thoughts of reasoning models: ``<think> ... </think> answer``."""

from collections.abc import Callable, Sequence

BEGIN, END = "<think>", "</think>"
OPENING_TOKENS = 8
"""Last tokens of a prompt, in which it may have opened a thought."""


def opened_thought(text: str) -> str:
    """Beginning of a thought with which a prompt ends; empty if it ends otherwise. Ends in ``<think>`` and spaces."""
    return text[text.rfind(BEGIN) :] if text.rstrip().endswith(BEGIN) else ""


def opened_by(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> str:
    """Beginning of a thought with which these tokens end, by their text; see `opened_thought`."""
    return opened_thought(decode(list(token_ids[-OPENING_TOKENS:])))


def after_thought(text: str, *, is_open: bool = False) -> str:
    """
    Text after the thought, the whole text if there is none, or nothing if the thought is not finished.

    Args:
        is_open: The prompt has opened the thought already.
    """
    _, closed, answer = text.rpartition(END)
    if closed:
        return answer.lstrip("\n")
    return "" if is_open or text.lstrip().startswith(BEGIN) else text
