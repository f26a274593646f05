"""Boundaries of turns: the token ids between two turns of an episode, by the tokenizer's chat template."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.engine import IMAGE, CalledTool, ChatMessage, PolicyTurn, TurnBoundary
from asyncrl.episodes.call_forms import MARKS, PARSERS, form_of, no_calls
from asyncrl.episodes.tool_calls import (
    MAX_CALLS,
    TOO_MANY,
    ParsedText,
    Parser,
    Schemas,
    as_message,
    as_object,
    judged,
    named_call,
    opened_thought,
    problematic,
    split_thought,
    to_call,
    typed,
)
from asyncrl.errors import ConfigError, DataError, EngineError
from asyncrl.messages.words import FinishReason
from asyncrl.plug_in import describe
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.chat_template import PLAIN_REMEDY, PROBE, SENTINEL, ChatTemplate, parts_of
from asyncrl.rollout.engines.special_tokens import TOOL, SpelledTokens, special_tokens, without_last
from asyncrl.vision.picture import expand
from asyncrl.vision.processor import ImageProcessor

# ── turn ──────────────────────────────────────────────────────────────────────────────────────
# Text of a turn and the calls of tools in it, found by a parser, or by a tokenizer's own response template
# (`PreTrainedTokenizerBase.parse_response`).

Find = Callable[[Sequence[int]], ParsedText]
"""Finds the calls, the thought and the content of a turn of these tokens."""
Finder = Callable[[str], Find]
"""
Gives what finds calls of these tools, as `Prompt.tools`; of those of the run if empty.

Raises `ConfigError` if the chat template does not show them, or has no form of calls.
"""


def read_turn(
    tokenizer: PreTrainedTokenizerBase, find: Find, token_ids: Sequence[int], finish_reason: FinishReason
) -> PolicyTurn:
    """Read a turn. A thought (``<think>...</think>``) is in the text, but not in the content, and calls no tool."""
    found = find(token_ids)
    whole = text.decode(tokenizer, list(token_ids))
    return PolicyTurn(
        text=whole, content=found.content, thought=found.thought, tool_calls=found.calls, finish_reason=finish_reason
    )


def by_parser(tokenizer: PreTrainedTokenizerBase, parse: Parser, schemas: Schemas, *, in_thought: bool) -> Find:
    """
    Find calls by a parser of `asyncrl.episodes.call_forms`.

    Args:
        schemas: Of the parameters of the tools.
        in_thought: The generation prompt opens a thought.
    """
    special = special_tokens(tokenizer)
    hidden = {token_id for token_id, token in special.items() if token not in MARKS}

    def find(token_ids: Sequence[int]) -> ParsedText:
        shown = [token_id for token_id in token_ids if token_id not in hidden]
        spoken: str = tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        thought, answer = split_thought(spoken, is_open=in_thought)
        found = parse(answer, schemas)
        return found if found.thought else ParsedText(found.content, found.calls, thought)

    return find


THOUGHTS = ("thinking", "reasoning_content", "reasoning")
"""Names that response templates give to a thought."""


def has_response_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return getattr(tokenizer, "response_template", None) is not None


def by_response_template(tokenizer: PreTrainedTokenizerBase, generation_prompt: str, schemas: Schemas) -> Find:
    """
    Find calls by the response template. It is not shown the tools: a text is another value by our rule alone.

    Args:
        generation_prompt: Text before a turn of the policy, which may open a thought.
        schemas: Of the parameters of the tools.
    """

    def find(token_ids: Sequence[int]) -> ParsedText:
        spoken: str = tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            message = tokenizer.parse_response(spoken, prefix=generation_prompt)
        except Exception as error:  # noqa: BLE001  patterns and JSON of a model directory, on a text of the policy
            return ParsedText(spoken, [problematic(f"the turn cannot be read: {describe(error, __file__)}")])
        content, calls = message.get("content"), message.get("tool_calls") or []
        found = [to_call(partial(_read, call, schemas)) for call in calls[:MAX_CALLS]]
        too_many = [problematic(TOO_MANY)] if len(calls) > MAX_CALLS else []
        thought = next((message[name] for name in THOUGHTS if isinstance(message.get(name), str)), "")
        return ParsedText(content if isinstance(content, str) else "", found + too_many, thought)

    return find


def _read(call: Any, schemas: Schemas) -> CalledTool:
    value = as_object(call)
    found = named_call(as_object(value.get("function", value)), "arguments", beside=["id", "type"])
    parameters = schemas.get(found.name, {})
    arguments = {
        name: typed(one, name, parameters) if isinstance(one, str) else one for name, one in found.arguments.items()
    }
    return replace(found, arguments=arguments)


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────
# Tokens of the pictures in messages: the template writes one for each, which becomes as many as the model reads.

READS_NONE = (
    "a message after the prompt shows a picture, but the model reads none; use a Qwen3-VL or Qwen2.5-VL, or an "
    "environment of text"
)


class PicturesInTurns:
    """Expands the image tokens of rendered messages. ``processor`` is None if the model reads no pictures."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, processor: ImageProcessor | None) -> None:
        self._processor = processor
        ids = list(processor.placeholder_ids) if processor else []
        self.placeholder = "".join(tokenizer.convert_ids_to_tokens(ids))
        """Special tokens of a picture in plain text."""

    def expanded(self, token_ids: list[int], messages: Sequence[ChatMessage]) -> list[int]:
        """
        Token ids of these messages, in which each picture has all of its tokens.

        Raises a final `EngineError` if other pictures have tokens than those of the messages, or the model reads none.
        """
        shown = [part for message in messages for part in parts_of(message) if part["type"] == IMAGE]
        if self._processor is None:
            if shown:
                raise EngineError(READS_NONE, retryable=False)
            return token_ids
        found = self._processor.vision_token_ids.intersection(token_ids)
        if found.difference(self._processor.placeholder_ids if shown else ()):
            raise EngineError(
                "a message after the prompt spells a token of pictures, which only a picture may have", retryable=False
            )
        try:
            counts = [self._processor.num_tokens(self._processor.grid(part["width"], part["height"])) for part in shown]
        except DataError as error:
            raise EngineError(str(error), retryable=False) from error
        if (num := token_ids.count(self._processor.image_token_id)) != len(counts):
            roles = ", ".join(dict.fromkeys(roles_of(messages)))
            raise EngineError(
                f"messages of the roles {roles} have {len(counts)} pictures, but {num} tokens for them as they are "
                f"rendered: the chat template must show each picture once, and no text may spell its token",
                retryable=False,
            )
        return expand(token_ids, counts, self._processor.image_token_id)


# ── boundary ──────────────────────────────────────────────────────────────────────────────────────
# Token ids that stand between two turns of the policy, from a tokenizer and its chat template.
#
#     render   user, assistant = SENTINEL, new messages, generation prompt
#                                        └──── tail ────┘ tokenized alone, less its beginning if the policy wrote it
#
# Only what stands behind the sentinel is used, so it does not matter what a template makes of earlier turns. Sampled
# tokens are never decoded to be encoded again. Where a template takes a tool only after a call, the sentinel is an
# argument of each call, and the tail begins at the special token that ends the last one that the template shows.

MOST_REPEATED = 16
"""Most tokens at the beginning of a tail that the policy may have written itself."""


class TailShape(Struct, frozen=True):
    """Form of the tails for messages of certain roles."""

    after_call: bool
    """The policy's turn is rendered as a call of tools."""
    head: str
    """Text before the first message's content; without messages, all of it."""


class ChatBoundary:
    """
    `TurnBoundary` of chats.

    Args:
        processor: Image processor of the model; None if it reads no pictures.
        spelled: That of the tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: ChatTemplate,
        finder: Finder,
        processor: ImageProcessor | None = None,
        *,
        spelled: SpelledTokens,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._finder = finder
        self._pictures = PicturesInTurns(tokenizer, processor)
        self._special = special_tokens(tokenizer)
        self._ends = {token_id: token for token_id, token in self._special.items() if token not in MARKS}
        """Special tokens that no call consists of: one of them may end a turn."""
        self._spelling = spelled
        self._shapes: dict[tuple[str, ...], TailShape] = {}
        self._opened = opened_thought(template.generation_prompt())
        """Thought that the template opens, which a turn of the policy has closed and not begun."""

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        tail_ids = self._encode(self.tail(self.quoted(messages)), messages)
        return tail_ids[self._num_repeated(tail_ids, last_ids, self.shape(roles_of(messages)).head) :]

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        self._find(tools)
        return self._opened_by(self.quoted(messages), tools)

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(self._spelling.quoted(messages))

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        if self._answers_calls() and _answers_without_call(messages):
            return None  # The template would leave them out.
        retold = self._opened_by(messages, tools)
        return None if self._spelling.spelled(retold) == self._spelling.spelled(read_ids) else retold

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        return read_turn(self._tokenizer, self._find(tools), token_ids, finish_reason)

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        if self._answers_calls():
            return self.quoted([as_message(self._find("")(token_ids))])[0]
        written = self._spelling.retold(without_last(token_ids, self._ends))
        return {"role": "assistant", "content": self._opened + written}

    def text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, list(token_ids))

    def _find(self, tools: str) -> Find:
        try:
            return self._finder(tools)
        except ConfigError as error:
            raise EngineError(str(error), retryable=False) from error

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

    def _answers_calls(self) -> bool:
        """True if the template shows an answer of a tool only after a message with a call."""
        try:
            return self.shape([TOOL]).after_call
        except EngineError:
            return False

    def begins_with_special_token(self, shape: TailShape) -> bool:
        """True if a special token stands at the boundary."""
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
                remedy = f" ({PLAIN_REMEDY})" if probe["role"] == TOOL else ""
                raise EngineError(
                    f"the chat template leaves out messages of the role {probe['role']}, so the policy would never "
                    f"read them; answer with another role, such as user, or take a template that has this one{remedy}",
                    retryable=False,
                )
        return tail[: starts[1]] if probes else tail

    def _rendered(self, messages: Sequence[ChatMessage], *, after_call: bool) -> str:
        """Rendered text behind the policy's turn."""
        turn, answers = _called(messages) if after_call else ({"role": "assistant", "content": SENTINEL}, messages)
        begin = [{"role": "user", "content": PROBE}, turn]
        chat = self._template.render([*begin, *answers])
        num_shown = self._template.render(begin, answers=False).count(SENTINEL) if after_call else 1
        *turns, tail = chat.split(SENTINEL, num_shown)
        end = self._spelling.control.search(tail) if after_call else None
        if not turns or (after_call and not end):
            raise EngineError(
                "the chat template does not show where a turn of the policy ends; use another template", retryable=False
            )
        return tail[end.start() :] if end else tail

    def _opened_by(self, messages: Sequence[ChatMessage], tools: str) -> list[int]:
        shown = self._spelling.quoted(text.read_tools(tools))
        return self._encode(self._template.render(messages, tools=shown), messages)

    # ── tokens ──────────────────────────────────────────────────────────────────────────────

    def _num_repeated(self, tail_ids: Sequence[int], last_ids: Sequence[int], head: str) -> int:
        """Number of tokens at the beginning of the tail, a special one first, with which the policy's turn ends."""
        mark = self._special.get(tail_ids[0]) if tail_ids else None
        if mark is None or not head.startswith(mark):
            return 0
        most = min(len(tail_ids), len(last_ids), MOST_REPEATED)
        return next((n for n in range(most, 0, -1) if list(last_ids[-n:]) == list(tail_ids[:n])), 0)

    def _encode(self, rendered: str, messages: Sequence[ChatMessage]) -> list[int]:
        return self._pictures.expanded(self._spelling.encode(rendered), messages)


def _answers_without_call(messages: Sequence[ChatMessage]) -> bool:
    """True if an answer of a tool follows a turn of the policy that has no call which can be read."""
    return any(
        answer.get("role") == TOOL and turn.get("role") == "assistant" and not turn.get("tool_calls")
        for turn, answer in pairwise(messages)
    )


def roles_of(messages: Sequence[ChatMessage]) -> list[str]:
    return [str(message.get("role")) for message in messages]


def _called(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, list[ChatMessage]]:
    """A turn that calls the tools which the first messages answer, and the messages with the ids of the calls."""
    num_answers = next((n for n, message in enumerate(messages) if message.get("role") != TOOL), len(messages))
    calls: list[dict[str, Any]] = []
    answers = list(messages)
    for number, message in enumerate(messages[:num_answers]):
        call_id = message.get("tool_call_id") or f"call{number:05}"
        function = {"name": message.get("name") or "tool", "arguments": {"a": int(SENTINEL)}}
        calls.append({"id": call_id, "type": "function", "function": function})
        answers[number] = {**message, "tool_call_id": call_id}
    return {"role": "assistant", "content": "", "tool_calls": calls}, answers


# ── boundary check ────────────────────────────────────────────────────────────────────────────────
# Proof before the start of a run that a chat template has boundaries.

ENDINGS = ("a", "word", "5", ".", "?", " ", "\n", "}", "</tool_call>", "é", "水")
"""Ends of turns that are tried, besides `NUM_TOKENS` single tokens of the vocabulary."""
NUM_TOKENS = 32
"""Tokens of the vocabulary that are tried as the end of a turn and as the beginning of an answer."""


def check_boundary(boundary: ChatBoundary, tokenizer: PreTrainedTokenizerBase, roles: Sequence[str]) -> None:
    """
    Raise `ConfigError` unless the policy can read an answer of each of these roles after its turn.

    A special token must stand there, or else the tokens of a turn and of the answer to it must be those of their joined
    text: with other tokens between them the policy would read what no text has.
    """
    for role in roles:
        try:
            shape = boundary.shape([role])
            if not boundary.begins_with_special_token(shape):
                _check_tokens(boundary, tokenizer, role)
        except EngineError as error:
            raise ConfigError(f"episodes need another chat template: {error}") from error


def _check_tokens(boundary: ChatBoundary, tokenizer: PreTrainedTokenizerBase, role: str) -> None:
    texts = list(_texts(tokenizer))
    for answer in texts or [PROBE]:
        after = boundary.after([{"role": role, "content": answer}], [])
        rendered = boundary.tail([{"role": role, "content": answer}])
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


# ── text boundary ─────────────────────────────────────────────────────────────────────────────────
# TurnBoundary of plain text: messages are the texts of their contents, one after another.


class TextBoundary:
    """`TurnBoundary` of prompts without a chat. Each answer is tokenized alone: what the policy wrote stays."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, find: Find, processor: ImageProcessor | None = None) -> None:
        self._tokenizer = tokenizer
        self._find = find
        self._pictures = PicturesInTurns(tokenizer, processor)

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        token_ids = list(self._tokenizer(self._joined(messages), add_special_tokens=False).input_ids)
        return self._pictures.expanded(token_ids, messages)

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        token_ids = text.token_ids(self._tokenizer, self._joined(messages), text.NO_KWARGS, tools)
        return self._pictures.expanded(token_ids, messages)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        return None  # Without a template, nothing is rendered again.

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)  # Bare text is encoded as it stands.

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        return read_turn(self._tokenizer, self._find, token_ids, finish_reason)

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": self.text(token_ids)}

    def text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, list(token_ids))

    def _joined(self, messages: Sequence[ChatMessage]) -> str:
        parts = [part for message in messages for part in parts_of(message)]
        return "".join(self._pictures.placeholder if part["type"] == IMAGE else part["text"] for part in parts)


# ── boundaries ─────────────────────────────────────────────────────────────────────────────────────

MOST_TOOLSETS = 64
"""Lists of tools whose finders are kept; agents of one program show a few."""


def make_boundary(
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    *,
    is_chat: bool = True,
    tools: str = "",
    tool_parser: ToolParser = "auto",
    processor: ImageProcessor | None = None,
    spelled: SpelledTokens | None = None,
) -> TurnBoundary:
    """
    The boundary of the turns of a run's episodes.

    Args:
        is_chat: Prompts are chats; otherwise plain text.
        tools: Tools of the environment, as `Prompt.tools`.
        processor: Image processor of the model; None if it reads no pictures.
        spelled: That of the tokenizer.

    Raises `ConfigError` if the chat template cannot be used for episodes, or shows no tools.
    """
    try:
        listed = text.read_tools(tools)
        if is_chat:
            spelled = spelled or SpelledTokens(tokenizer)
            quoted = spelled.quoted(listed)
            template = ChatTemplate(tokenizer, template_kwargs, quoted, is_plain=tool_parser == "plain")

            @lru_cache(MOST_TOOLSETS)
            def finder(tools: str) -> Find:
                shown = text.read_tools(tools) or listed
                _check_tools(template, shown)
                schemas = {str(one.get("name", "")): _parameters(one) for one in map(_function, shown)}
                find = _find(tokenizer, template, schemas, tool_parser)
                return (lambda token_ids: judged(find(token_ids), schemas)) if shown else find

            finder("")
            boundary = ChatBoundary(tokenizer, template, finder, processor, spelled=spelled)
            check_boundary(boundary, tokenizer, ["user", TOOL] if listed else ["user"])
            return boundary
    except EngineError as error:
        raise ConfigError(f"episodes need another chat template: {error}") from error
    if listed:
        raise ConfigError(
            "the environment has tools, but prompts of plain text have no place for them; write the prompts as chats"
        )
    parse = PARSERS.get(tool_parser, no_calls)
    return TextBoundary(tokenizer, by_parser(tokenizer, parse, {}, in_thought=False), processor)


def _find(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, schemas: Schemas, tool_parser: ToolParser
) -> Find:
    """Finder of the calls in a turn. Raises `ConfigError` if it is unknown and needed."""
    prompt = template.generation_prompt()
    if tool_parser == "response_template" or (tool_parser == "auto" and has_response_template(tokenizer)):
        if not has_response_template(tokenizer):
            raise ConfigError(
                'environment.tool_parser is "response_template", but the tokenizer has none; name another form'
            )
        return by_response_template(tokenizer, prompt, schemas)
    form = form_of(template.source) if tool_parser == "auto" else tool_parser
    if form is None and schemas:
        raise ConfigError(
            "the chat template shows no form in which the policy would write calls of tools; name it in "
            f"environment.tool_parser: {', '.join(PARSERS)} (which shows tools as texts, too)"
        )
    parse = PARSERS.get(form or "none", no_calls)
    return by_parser(tokenizer, parse, schemas, in_thought=bool(opened_thought(prompt)))


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """JSON schema of a function's arguments; one that is no object, such as ``true``, says nothing."""
    return found if isinstance(found := function.get("parameters"), Mapping) else {}


def _check_tools(template: ChatTemplate, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` unless the template shows all tools."""
    shown = template.render([{"role": "user", "content": PROBE}], tools=tools) if tools else ""
    if hidden := [name for tool in tools if (name := _function(tool).get("name", "")) not in shown]:
        raise ConfigError(
            f"the chat template does not show the tool {hidden[0]} to the policy; {PLAIN_REMEDY}, or take a template "
            f"with tools"
        )


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function
