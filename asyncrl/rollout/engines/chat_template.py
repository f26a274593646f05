"""
A tokenizer's chat template, and messages in the form that it takes.

Messages come from environments and agent programs in OpenAI's form. Content becomes one string, or a list of parts
if pictures are among them, for which the template writes its special tokens. Arguments of calls are objects for most
templates and JSON texts for some; which of them is tried once. So is whether a template takes a system message, and
one after others, such as a reminder: where it does not, the user says it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from asyncrl.engine import IMAGE, ChatMessage
from asyncrl.episodes.call_forms import plain
from asyncrl.errors import EngineError
from asyncrl.rollout.engines.text import NO_KWARGS, TemplateKwargs

PROBE = "Qx7f3a"
"""Text that templates leave as it is: no space, no tag, no word of a template."""
SENTINEL = "7390146258"
"""Turn of the policy in a rendered chat. In a call it is a number, behind which templates write no quotation mark."""

PLAIN_REMEDY = "environment.tool_parser = 'plain' shows tools, calls and results as texts"


class ChatTemplate:
    """
    Renders chats of one run.

    Args:
        tools: Tools that the template shows, in OpenAI's form.
        is_plain: Tools, their calls and their results are texts of the chat; the template is told of none.

    Raises `EngineError` if the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        kwargs: TemplateKwargs = NO_KWARGS,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        is_plain: bool = False,
    ) -> None:
        if not tokenizer.chat_template:
            raise EngineError(
                "the prompt is a chat, but the tokenizer has no chat template; use plain text", retryable=False
            )
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs)
        self._tools = list(tools)
        self._is_plain = is_plain
        self._takes_system = self._takes_reminders = True  # until it is tried
        self._takes_objects = self._shows_arguments(as_objects=True) or not self._shows_arguments(as_objects=False)
        takes_reminders, self._takes_system = self._shows_reminders(), self._shows_system()
        self._takes_reminders = takes_reminders

    @property
    def source(self) -> str:
        """Text of the template, in Jinja."""
        return str(self._tokenizer.get_chat_template(tools=self._tools or None))

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
        told = list(messages)
        if not (self._takes_system and self._takes_reminders):
            told = without_reminders(messages, keeps_first=self._takes_system)
        chat, shown = [self._plain(message) for message in told], list(tools) or self._tools
        if self._is_plain:
            chat, shown = plain(chat, shown), []
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    chat,
                    tools=shown or None,
                    tokenize=False,
                    add_generation_prompt=answers,
                    **self._kwargs,
                )
            )
        except Exception as error:  # a template may raise anything
            roles = [str(message.get("role")) for message in messages]
            remedy = f"; {PLAIN_REMEDY}" if "tool" in roles and not self._is_plain else ""
            raise EngineError(
                f"the chat template does not take messages of the roles {', '.join(roles)}: {error}{remedy}",
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

    def _shows_reminders(self) -> bool:
        """True if a system message after others is shown where it stands."""
        shown = self._tried(("user", "a"), ("assistant", SENTINEL), ("system", PROBE), ("user", "c"))
        return 0 <= shown.find(SENTINEL) < shown.find(PROBE)

    def _shows_system(self) -> bool:
        """True if a system message before all others is shown."""
        return PROBE in self._tried(("system", PROBE), ("user", "a"))

    def _tried(self, *told: tuple[str, str]) -> str:
        """Text of a chat with these roles and contents; empty if the template does not take it."""
        try:
            return self.render([{"role": role, "content": text} for role, text in told], answers=False)
        except EngineError:
            return ""


def without_reminders(messages: Sequence[ChatMessage], *, keeps_first: bool = True) -> list[ChatMessage]:
    """
    Messages with one system message, the first, or with none.

    Another one is said by the user, in the message beside it if there is any.
    """
    told: list[tuple[ChatMessage, bool]] = []
    for message in messages:
        before, has_reminder = told[-1] if told else ({}, False)
        is_reminder = message.get("role") == "system" and (bool(told) or not keeps_first)
        joins = is_reminder or (has_reminder and message.get("role") == "user")
        if joins and before.get("role") in ("system", "user"):
            whole = _joined(before, message)
            told[-1] = {"role": before["role"], "content": whole}, before["role"] == "user"
        elif is_reminder:
            told.append(({"role": "user", "content": content_of(message)}, True))
        else:
            told.append((message, False))
    return [message for message, _ in told]


def _joined(before: ChatMessage, message: ChatMessage) -> str | list[dict[str, str]]:
    """Contents of two messages, with an empty line between them."""
    parts = [*parts_of(before), {"type": "text", "text": "\n\n"}, *parts_of(message)]
    return content_of({"role": before["role"], "content": parts})


def content_of(message: ChatMessage) -> str | list[dict[str, str]]:
    """
    Content as one text, or as a list of texts and pictures if there are pictures.

    Raises a final `EngineError` if it is anything else.
    """
    parts = parts_of(message)
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return [{"type": IMAGE} if part["type"] == IMAGE else part for part in parts]


def parts_of(message: ChatMessage) -> list[dict[str, Any]]:
    """Texts and pictures of a message, in their order. Raises as `content_of`."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(map(_is_part, content)):
        return [part if part.get("type") == IMAGE else {"type": "text", "text": part["text"]} for part in content]
    raise EngineError(
        f"a message of the role {message.get('role')} has content of type {type(content).__name__}: expected a text or "
        f"a list of texts and pictures",
        retryable=False,
    )


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and (part.get("type") == IMAGE or isinstance(part.get("text"), str))
