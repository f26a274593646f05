"""Seam of plain text: messages are the texts of their contents, one after another."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from asyncrl.environment.interface import ChatMessage, PolicyTurn
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.chat_template import content_of
from asyncrl.rollout.engines.turn_reader import TurnReader


class TextSeam:
    """`Seam` of prompts without a chat. Each answer is tokenized alone: what the policy wrote stays as it wrote it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, reader: TurnReader) -> None:
        self._tokenizer = tokenizer
        self._reader = reader

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        return list(self._tokenizer(_joined(messages), add_special_tokens=False).input_ids)

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        return text.token_ids(self._tokenizer, _joined(messages), text.NO_KWARGS, tools)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        return None  # Without a template, nothing is rendered again.

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)  # Bare text is encoded as it stands.

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason) -> PolicyTurn:
        return self._reader.read(token_ids, finish_reason)

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": self.text(token_ids)}

    def text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, list(token_ids))


def _joined(messages: Sequence[ChatMessage]) -> str:
    return "".join(map(content_of, messages))
