"""Text of a turn and the calls of tools in it."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from asyncrl.engine import PolicyTurn
from asyncrl.episodes.tool_calls import MARKS, ParsedText, Parser, Schemas, after_thought
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.special_tokens import special_tokens

Find = Callable[[Sequence[int]], ParsedText]
"""Finds the calls and the content of a turn of these tokens."""


class TurnReader:
    """Reads turns. A thought (``<think>...</think>``) is in the text, but not in the content, and calls no tool."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, find: Find) -> None:
        self._tokenizer = tokenizer
        self._find = find

    def read(self, token_ids: Sequence[int], finish_reason: FinishReason) -> PolicyTurn:
        found = self._find(token_ids)
        return PolicyTurn(
            text=text.decode(self._tokenizer, list(token_ids)),
            content=found.content,
            tool_calls=found.calls,
            finish_reason=finish_reason,
        )


def by_parser(tokenizer: PreTrainedTokenizerBase, parse: Parser, schemas: Schemas, *, in_thought: bool) -> Find:
    """
    Find calls by a parser of `asyncrl.episodes.tool_calls`.

    Args:
        schemas: Of the parameters of the tools.
        in_thought: The generation prompt opens a thought.
    """
    special = special_tokens(tokenizer)
    hidden = {token_id for token_id, token in special.items() if token not in MARKS}

    def find(token_ids: Sequence[int]) -> ParsedText:
        shown = [token_id for token_id in token_ids if token_id not in hidden]
        spoken: str = tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return parse(after_thought(spoken, is_open=in_thought), schemas)

    return find
