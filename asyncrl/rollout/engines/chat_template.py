"""
A tokenizer's chat template, and messages in the form that it takes.

Messages come from environments and agent programs in OpenAI's form. Content becomes one string. Arguments of calls are
objects for most templates and JSON texts for some; which of them is tried once.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from asyncrl.environment.interface import ChatMessage
from asyncrl.errors import EngineError
from asyncrl.plug_in import describe
from asyncrl.rollout.engines.text import NO_KWARGS, TemplateKwargs
from asyncrl.rollout.engines.turn_reader import Find
from asyncrl.rollout.episodes.tool_calls import (
    MAX_CALLS,
    TOO_MANY,
    Call,
    ParsedText,
    as_object,
    named_call,
    problematic,
    to_call,
)

PROBE = "Qx7f3a"
"""Text that templates leave as it is: no space, no tag, no word of a template."""


class ChatTemplate:
    """
    Renders chats of one run.

    Args:
        tools: Tools that the template shows, in OpenAI's form.

    Raises `EngineError` if the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        kwargs: TemplateKwargs = NO_KWARGS,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise EngineError(
                "the prompt is a chat, but the tokenizer has no chat template; use plain text", retryable=False
            )
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs)
        self._tools = list(tools) or None
        self._takes_objects = self._shows_arguments(as_objects=True) or not self._shows_arguments(as_objects=False)

    @property
    def source(self) -> str:
        """Text of the template, in Jinja."""
        return str(self._tokenizer.get_chat_template(tools=self._tools))

    def generation_prompt(self) -> str:
        """Text that begins a turn of the policy."""
        chat = [{"role": "user", "content": PROBE}]
        return self.render(chat).removeprefix(self.render(chat, answers=False))

    def render(
        self, messages: Sequence[ChatMessage], *, answers: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """
        Text of a chat.

        Args:
            answers: Up to the beginning of the policy's turn; otherwise up to the end of the last message.
            tools: Tools of this chat, instead of those of the run.

        Raises a final `EngineError` if the template does not take these messages.
        """
        chat = [self._plain(message) for message in messages]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    chat,
                    tools=list(tools) or self._tools,
                    tokenize=False,
                    add_generation_prompt=answers,
                    **self._kwargs,
                )
            )
        except Exception as error:  # a template may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise EngineError(
                f"the chat template does not take messages of the roles {roles}: {error}",
                retryable=False,
            ) from error

    def _plain(self, message: ChatMessage) -> ChatMessage:
        plain = {**message, "content": content_of(message)}
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [self._call(call) for call in calls]
        else:
            plain.pop("tool_calls", None)  # Templates ask for the key, not for calls in it.
        return plain

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call.get("function", call))
        arguments = function.get("arguments", {})
        try:
            if self._takes_objects and isinstance(arguments, str):
                arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
            elif not self._takes_objects and not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
            raise EngineError(
                f"the arguments of a call of {function.get('name')} are no JSON object: {error}", retryable=False
            ) from error
        return {"type": "function", **call, "function": {**function, "arguments": arguments}}

    def _shows_arguments(self, *, as_objects: bool) -> bool:
        """True if calls are shown with their arguments in this form."""
        self._takes_objects = as_objects
        function = {"name": "f", "arguments": {"a": PROBE}}
        call = {"role": "assistant", "tool_calls": [{"id": "call00000", "function": function}]}
        try:
            return PROBE in self.render([{"role": "user", "content": "a"}, call], answers=False)
        except EngineError:
            return False


def content_of(message: ChatMessage) -> str:
    """Content as one text. Raises a final `EngineError` if it is anything but text or parts of text."""
    content = message.get("content")
    match content:
        case None:
            return ""
        case str():
            return content
        case list() if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            return "".join(part["text"] for part in content)
    raise EngineError(
        f"a message of the role {message.get('role')} has content of type {type(content).__name__}: expected a text or "
        f"a list of parts with text; pictures after the prompt are not supported",
        retryable=False,
    )


# ── response template ─────────────────────────────────────────────────────────────────────────
# Calls of tools as a tokenizer's own response template finds them (`PreTrainedTokenizerBase.parse_response`).


def has_response_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return getattr(tokenizer, "response_template", None) is not None


def by_response_template(
    tokenizer: PreTrainedTokenizerBase, generation_prompt: str, tools: Sequence[dict[str, Any]]
) -> Find:
    """
    Find calls by the response template.

    Args:
        generation_prompt: Text before a turn of the policy, which may open a thought.
    """

    def find(token_ids: Sequence[int]) -> ParsedText:
        spoken: str = tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            message = tokenizer.parse_response(spoken, prefix=generation_prompt, tools=list(tools))
        except Exception as error:  # noqa: BLE001  patterns and JSON of a model directory, on a text of the policy
            return ParsedText(spoken, [problematic(f"the turn cannot be read: {describe(error, __file__)}")])
        content, calls = message.get("content"), message.get("tool_calls") or []
        found = [to_call(partial(_read, call)) for call in calls[:MAX_CALLS]]
        too_many = [problematic(TOO_MANY)] if len(calls) > MAX_CALLS else []
        return ParsedText(content if isinstance(content, str) else "", found + too_many)

    return find


def _read(call: Any) -> Call:
    value = as_object(call)
    return named_call(as_object(value.get("function", value)), "arguments")
