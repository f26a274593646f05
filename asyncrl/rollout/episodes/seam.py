"""
Interface for what stands between two turns: token ids of messages that follow tokens of the policy.

    policy's tokens │ <|im_end|> <|im_start|>tool ... <|im_end|> <|im_start|>assistant │ policy's tokens
                    └──────────────────── after(messages, last_ids) ───────────────────┘

`asyncrl.rollout.engines.seams.make_seam` makes one from a tokenizer and its chat template.
"""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.environment.interface import ChatMessage, PolicyTurn
from asyncrl.messages.words import FinishReason


class Seam(Protocol):
    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int], /) -> list[int]:
        """
        Token ids from the end of a turn of the policy to the beginning of its next one.

        Args:
            messages: What was said in between; may be empty, if the policy is to go on.
            last_ids: Tokens of the policy's turn, as sampled: what ends a turn is not repeated if it wrote that itself.

        Raises:
            EngineError: The template cannot render these messages.
        """

    def opening(self, messages: Sequence[ChatMessage], tools: str = "", /) -> list[int]:
        """
        Token ids of a whole chat up to the beginning of the policy's turn, for a context that follows nothing.

        ``tools`` are those of this chat, as `Prompt.tools`; empty takes those of the run.
        """

    def quoted(self, messages: Sequence[ChatMessage], /) -> list[ChatMessage]:
        """Messages for `retold`, in which the special tokens that their texts spell are marked as text."""

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "", /) -> list[int] | None:
        """
        Token ids of the whole conversation as the chat template renders it now, or None if the policy reads just that.

        With ``environment.history = "as_template"`` the next turn follows these instead of ``read_ids``, as a context
        that follows nothing. Templates of reasoning models leave out the thoughts of turns before the last question.

        Args:
            messages: Prompt and answers as `quoted`, and turns as `message` gives them.
            read_ids: Tokens that the policy would read otherwise: those of the path, and of `after`.
        """

    def message(self, token_ids: Sequence[int], /) -> ChatMessage:
        """A turn of the policy as a message of the chat: all of its text, without the tokens that ended it."""

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, /) -> PolicyTurn:
        """Text of a turn, and the calls of tools in it."""

    def text(self, token_ids: Sequence[int], /) -> str:
        """Text of any tokens without special tokens."""
