"""Choice of a seam for the episodes of a run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.environment.interface import ChatMessage, PolicyTurn
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engine import Seam
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.chat_template import (
    PROBE,
    ChatTemplate,
    by_response_template,
    content_of,
    has_response_template,
)
from asyncrl.rollout.engines.special_tokens import TOOL, SpelledTokens, special_tokens, without_last
from asyncrl.rollout.engines.turn_reader import Find, TurnReader, by_parser
from asyncrl.rollout.episodes.tool_calls import PARSERS, Schemas, form_of, no_calls, opened_thought

# ── seam ──────────────────────────────────────────────────────────────────────────────────────
# Token ids that stand between two turns of the policy, from a tokenizer and its chat template.
#
#     render   user, assistant = SENTINEL, new messages, generation prompt
#                                        └──── tail ────┘ tokenized alone, less its beginning if the policy wrote it
#
# Only what stands behind the sentinel is used, so it does not matter what a template makes of earlier turns. Sampled
# tokens are never decoded to be encoded again. Where a template takes a tool only after a call, the sentinel is an
# argument of a call, and the tail begins at the special token that ends the call.

SENTINEL = "7390146258"
"""Turn of the policy in a rendered chat. In a call it is a number, behind which templates write no quotation mark."""
MOST_REPEATED = 16
"""Most tokens at the beginning of a tail that the policy may have written itself."""


class TailShape(Struct, frozen=True):
    """Form of the tails for messages of certain roles."""

    after_call: bool
    """The policy's turn is rendered as a call of tools."""
    head: str
    """Text before the first message's content; without messages, all of it."""


class ChatSeam:
    """
    `Seam` of chats.

    Args:
        never: Ids that no message may contain, such as those of pictures.
        spelled: That of the tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: ChatTemplate,
        reader: TurnReader,
        never: Collection[int] = (),
        spelled: SpelledTokens | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._reader = reader
        self._never = frozenset(never)
        self._special = special_tokens(tokenizer)
        self._spelling = spelled or SpelledTokens(tokenizer)
        self._shapes: dict[tuple[str, ...], TailShape] = {}
        self._opened = opened_thought(template.generation_prompt())
        """Thought that the template opens, which a turn of the policy has closed and not begun."""

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        tail_ids = self._encode(self.tail(self.quoted(messages)))
        return tail_ids[self._num_repeated(tail_ids, last_ids, self.shape(roles_of(messages)).head) :]

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        return self._opened_by(self.quoted(messages), tools)

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(self._spelling.quoted(messages))

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        retold = self._opened_by(messages, tools)
        return None if self._spelling.spelled(retold) == self._spelling.spelled(read_ids) else retold

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason) -> PolicyTurn:
        return self._reader.read(token_ids, finish_reason)

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        written = self._spelling.retold(without_last(token_ids, self._special))
        return {"role": "assistant", "content": self._opened + written}

    def text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, list(token_ids))

    # ── tails ───────────────────────────────────────────────────────────────────────────────

    def tail(self, messages: Sequence[ChatMessage]) -> str:
        """Text from the end of a turn of the policy to the beginning of its next one."""
        return self._rendered(messages, after_call=self.shape(roles_of(messages)).after_call)

    def shape(self, roles: Sequence[str]) -> TailShape:
        """Shape of the tail for messages of these roles. Raises a final `EngineError` if the template loses one."""
        key = tuple(roles)
        if key not in self._shapes:
            self._shapes[key] = self._probed(roles)
        return self._shapes[key]

    def begins_with_special_token(self, shape: TailShape) -> bool:
        """True if a special token stands at the seam."""
        return bool(self._spelling.control.match(shape.head))

    def _probed(self, roles: Sequence[str]) -> TailShape:
        probes = [{"role": role, "content": f"{PROBE}{number}"} for number, role in enumerate(roles)]
        try:
            return TailShape(after_call=False, head=self._head(probes, after_call=False))
        except EngineError as problem:
            if not roles or roles[0] != TOOL:
                raise
            try:
                return TailShape(after_call=True, head=self._head(probes, after_call=True))
            except EngineError:
                raise problem from None

    def _head(self, probes: Sequence[ChatMessage], *, after_call: bool) -> str:
        tail = self._rendered(probes, after_call=after_call)
        starts = [0]
        for probe in probes:
            starts.append(tail.find(probe["content"], starts[-1]))
            if starts[-1] < 0:
                raise EngineError(
                    f"the chat template leaves out messages of the role {probe['role']}, so the policy would never "
                    f"read them; answer with another role, such as user, or take a template that has this one",
                    retryable=False,
                )
        return tail[: starts[1]] if probes else tail

    def _rendered(self, messages: Sequence[ChatMessage], *, after_call: bool) -> str:
        """Rendered text behind the policy's turn."""
        turn, answers = _called(messages) if after_call else ({"role": "assistant", "content": SENTINEL}, messages)
        chat = self._template.render([{"role": "user", "content": PROBE}, turn, *answers])
        _, found, tail = chat.partition(SENTINEL)
        end = self._spelling.control.search(tail) if after_call else None
        if not found or (after_call and not end):
            raise EngineError(
                "the chat template does not show where a turn of the policy ends; use another template", retryable=False
            )
        return tail[end.start() :] if end else tail

    def _opened_by(self, messages: Sequence[ChatMessage], tools: str) -> list[int]:
        shown = self._spelling.quoted(text.read_tools(tools))
        return self._encode(self._template.render(messages, tools=shown))

    # ── tokens ──────────────────────────────────────────────────────────────────────────────

    def _num_repeated(self, tail_ids: Sequence[int], last_ids: Sequence[int], head: str) -> int:
        """Number of tokens at the beginning of the tail, a special one first, with which the policy's turn ends."""
        mark = self._special.get(tail_ids[0]) if tail_ids else None
        if mark is None or not head.startswith(mark):
            return 0
        most = min(len(tail_ids), len(last_ids), MOST_REPEATED)
        return next((n for n in range(most, 0, -1) if list(last_ids[-n:]) == list(tail_ids[:n])), 0)

    def _encode(self, rendered: str) -> list[int]:
        token_ids = self._spelling.encode(rendered)
        if self._never and not self._never.isdisjoint(token_ids):
            raise EngineError(
                "a message after the prompt spells a token of pictures, which only a prompt may have", retryable=False
            )
        return token_ids


def roles_of(messages: Sequence[ChatMessage]) -> list[str]:
    return [str(message.get("role")) for message in messages]


def _called(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, list[ChatMessage]]:
    """A turn that calls the tools which the first messages answer, and the messages with the ids of the calls."""
    num_answers = next((n for n, message in enumerate(messages) if message.get("role") != TOOL), len(messages))
    calls: list[dict[str, Any]] = []
    answers = list(messages)
    for number, message in enumerate(messages[:num_answers]):
        call_id = message.get("tool_call_id") or f"call{number:05}"
        argument = int(SENTINEL) if number == num_answers - 1 else 0
        function = {"name": message.get("name") or "tool", "arguments": {"a": argument}}
        calls.append({"id": call_id, "type": "function", "function": function})
        answers[number] = {**message, "tool_call_id": call_id}
    return {"role": "assistant", "content": "", "tool_calls": calls}, answers


# ── seam check ────────────────────────────────────────────────────────────────────────────────
# Proof before the start of a run that a chat template has seams.

ENDINGS = ("a", "word", "5", ".", "?", " ", "\n", "}", "</tool_call>", "é", "水")
"""Ends of turns that are tried, besides `NUM_TOKENS` single tokens of the vocabulary."""
NUM_TOKENS = 32
"""Tokens of the vocabulary that are tried as the end of a turn and as the beginning of an answer."""


def check_seam(seam: ChatSeam, tokenizer: PreTrainedTokenizerBase, roles: Sequence[str]) -> None:
    """
    Raise `ConfigError` unless the policy can read an answer of each of these roles after its turn.

    A special token must stand at the seam, or else the tokens of a turn and of the answer to it must be those of their
    joined text: with other tokens at the seam the policy would read what no text has.
    """
    for role in roles:
        try:
            shape = seam.shape([role])
            if not seam.begins_with_special_token(shape):
                _check_tokens(seam, tokenizer, role)
        except EngineError as error:
            raise ConfigError(f"episodes need another chat template: {error}") from error


def _check_tokens(seam: ChatSeam, tokenizer: PreTrainedTokenizerBase, role: str) -> None:
    texts = list(_texts(tokenizer))
    for answer in texts or [PROBE]:
        after = seam.after([{"role": role, "content": answer}], [])
        rendered = seam.tail([{"role": role, "content": answer}])
        for end in texts:
            if [*_ids(tokenizer, end), *after] != _ids(tokenizer, end + rendered):
                raise ConfigError(
                    f"episodes need another chat template: it puts no special token between a turn that ends in "
                    f"{end!r} and an answer of the role {role}, and the tokenizer would join {rendered[:20]!r} with "
                    f"it; add the token that ends a turn to the template"
                )


def _texts(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Texts that are the same after they were encoded and decoded."""
    vocabulary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    step = max(1, len(vocabulary) // NUM_TOKENS)
    for end in (*ENDINGS, *(tokenizer.decode([token_id]) for token_id in vocabulary[::step])):
        if end and tokenizer.decode(_ids(tokenizer, end), clean_up_tokenization_spaces=False) == end:
            yield end


def _ids(tokenizer: PreTrainedTokenizerBase, words: str) -> list[int]:
    return list(tokenizer(words, add_special_tokens=False).input_ids)


# ── text seam ─────────────────────────────────────────────────────────────────────────────────
# Seam of plain text: messages are the texts of their contents, one after another.


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


# ── seams ─────────────────────────────────────────────────────────────────────────────────────


def make_seam(
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    *,
    is_chat: bool = True,
    tools: str = "",
    tool_parser: ToolParser = "auto",
    never: Collection[int] = (),
    spelled: SpelledTokens | None = None,
) -> Seam:
    """
    The seam of a run's episodes.

    Args:
        is_chat: Prompts are chats; otherwise plain text.
        tools: Tools of the environment, as `Prompt.tools`.
        never: Ids that no message after the prompt may contain.
        spelled: That of the tokenizer.

    Raises `ConfigError` if the chat template cannot be used for episodes, or shows no tools.
    """
    try:
        listed = text.read_tools(tools)
        if is_chat:
            template = ChatTemplate(tokenizer, template_kwargs, listed)
            _check_tools(template, listed)
            reader = TurnReader(tokenizer, _find(tokenizer, template, listed, tool_parser))
            seam = ChatSeam(tokenizer, template, reader, never, spelled)
            check_seam(seam, tokenizer, ["user", TOOL] if listed else ["user"])
            return seam
    except EngineError as error:
        raise ConfigError(f"episodes need another chat template: {error}") from error
    if listed:
        raise ConfigError(
            "the environment has tools, but prompts of plain text have no place for them; write the prompts as chats"
        )
    parse = PARSERS.get(tool_parser, no_calls)
    return TextSeam(tokenizer, TurnReader(tokenizer, by_parser(tokenizer, parse, {}, in_thought=False)))


def _find(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, tools: list[dict[str, Any]], tool_parser: ToolParser
) -> Find:
    """Finder of the calls in a turn. Raises `ConfigError` if it is unknown and needed."""
    prompt = template.generation_prompt()
    if tool_parser == "response_template" or (tool_parser == "auto" and has_response_template(tokenizer)):
        if not has_response_template(tokenizer):
            raise ConfigError(
                'environment.tool_parser is "response_template", but the tokenizer has none; name another form'
            )
        return by_response_template(tokenizer, prompt, tools)
    form = form_of(template.source) if tool_parser == "auto" else tool_parser
    if form is None and tools:
        raise ConfigError(
            "the chat template shows no form in which the policy would write calls of tools; name it in "
            f"environment.tool_parser: {', '.join(PARSERS)}"
        )
    parse = PARSERS.get(form or "none", no_calls)
    return by_parser(tokenizer, parse, _schemas(tools), in_thought=bool(opened_thought(prompt)))


def _check_tools(template: ChatTemplate, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` unless the template shows all tools."""
    shown = template.render([{"role": "user", "content": PROBE}]) if tools else ""
    if hidden := [name for tool in tools if (name := _function(tool).get("name", "")) not in shown]:
        raise ConfigError(
            f"the chat template does not show the tool {hidden[0]} to the policy; take a template with tools, or "
            f"describe them in the prompts and let an environment.function answer"
        )


def _schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    functions = [_function(tool) for tool in tools]
    return {function.get("name", ""): function.get("parameters", {}).get("properties", {}) for function in functions}


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function
