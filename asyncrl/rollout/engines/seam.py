"""
Token ids that stand between two turns of the policy, from a tokenizer and its chat template.

    render   user, assistant = SENTINEL, new messages, generation prompt
                                       └──── tail ────┘ tokenized alone, less its beginning if the policy wrote it

Only what stands behind the sentinel is used, so it does not matter what a template makes of earlier turns. Sampled
tokens are never decoded to be encoded again. Where a template takes a tool only after a call, the sentinel
is an argument of a call, and the tail begins at the special token that ends the call.
"""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from asyncrl.environment.interface import ChatMessage, PolicyTurn
from asyncrl.errors import EngineError
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.chat_template import PROBE, ChatTemplate
from asyncrl.rollout.engines.special_tokens import special_tokens, without_last
from asyncrl.rollout.engines.spelled_tokens import TOOL, SpelledTokens
from asyncrl.rollout.engines.turn_reader import TurnReader
from asyncrl.rollout.episodes.tool_calls.thoughts import opened_thought

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
