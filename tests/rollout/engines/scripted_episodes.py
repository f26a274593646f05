"""Episodes by a script: turns and answers of odd shapes, in the form of a family of chat templates."""

import json
import random
import re
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from asyncrl.engine import ChatMessage, Completion, Request, TurnBoundary
from asyncrl.episodes.call_forms import MARKS, plain
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, TurnContext
from asyncrl.messages.trajectory import FROM_PROMPT, Prompt, Sampling, Span
from asyncrl.rollout.engines import text
from tests.rollout.engines.chat_families import Family, tokenizer

PIECES = (
    *("The", " answer", " is", "42", " 水", "é", "🙂", "e\u0301", "\u200b", "Привет", ".", "?!", "{", '"}', "\\n", "'"),
    *(" ", "  ", "\n", "\n\n", "\t", "<b>", "</s>", "[INST]", "role", "user", "assistant", "\r\n", "\ufffd"),
)
NEUTRAL = tuple(piece for piece in PIECES if piece.strip() == piece)
LIMITS = EpisodeLimits(max_turns=100, max_tokens=1_000_000)


class Script(Struct):
    """One episode."""

    messages: list[ChatMessage]
    """The whole conversation, the policy's turns included."""
    record: EpisodeRecord
    sampled: list[list[int]]
    calls: list[tuple[str, str]]
    tail: list[int]
    """Context behind the last turn, which is not written yet."""
    is_plain: bool
    """All turns are written as the template would render them, and ended by its token or cut."""
    is_asked_again: bool
    """A question followed a turn of the policy."""


class ScriptedPolicy:
    """Writes turns; the tokens of a text, but for special ones, are split at random places, as no tokenizer would."""

    def __init__(self, family: Family, draw: random.Random, *, is_plain: bool) -> None:
        self.family = family
        self.tokenizer = tokenizer(family.name)
        self.sampled: list[list[int]] = []
        self.calls: list[tuple[str, str]] = []
        self.thoughts: list[str] = []
        self._special = re.compile(f"({'|'.join(map(re.escape, family.special))})")
        self._draw = draw
        self._is_plain = is_plain
        self.next_role = "user"
        """Role of the message that will answer."""

    async def sample(self, request: Request) -> Completion:
        self.sampled.append(token_ids := [*self._written(), *self._end()])
        return Completion(
            completion_ids=list(token_ids),
            behavior_logprobs=[-1.0] * len(token_ids),
            spans=[Span(0, 0, len(token_ids))],
            finish_reason="stop",
            generate_s=0.0,
        )

    def _written(self) -> list[int]:
        return [token for part in self._parts(self._spoken()) for token in self._ids(part)] or self._ids("x")

    def _spoken(self) -> str:
        draw, family = self._draw, self.family
        answer = family.says + words(draw, plain=self._is_plain, without=family.special)
        if self.next_role == "tool" and (draw.random() < 0.7 or family.answers_calls):
            self.calls.append((f"tool{draw.randrange(2)}", words(draw, plain=True, without=family.special)))
            answer = family.call(*self.calls[-1])
        if family.thought and draw.random() < 0.5:
            self.thoughts.append(words(draw, plain=True, without=family.special))
            return family.thought.format(self.thoughts[-1]) + answer
        return family.begins + answer

    def _parts(self, spoken: str) -> Iterator[str]:
        for part in self._special.split(spoken):
            rest = part
            while rest:
                length = len(rest) if self._special.fullmatch(part) else self._draw.randint(1, 12)
                yield rest[:length]
                rest = rest[length:]

    def _end(self) -> list[int]:
        """The token that ends a turn, or another one, or none because it was cut."""
        usual = (self.family.end_of_call if self.next_role == "tool" else "") or self.family.end
        others = [] if self._is_plain else sorted(set(self.family.special) - {usual, *MARKS})
        return self._ids(self._draw.choice([usual, usual, usual, "", *others]))

    def _ids(self, written: str) -> list[int]:
        return list(self.tokenizer(written, add_special_tokens=False).input_ids)


def shown(family: Family, chat: Sequence[ChatMessage], tools: str) -> tuple[list[ChatMessage], str]:
    """The chat and the tools that the template of a family is told."""
    return (plain(chat, json.loads(tools)), "") if family.form == "plain" else (list(chat), tools)


async def play(family: Family, seed: int, boundary: TurnBoundary, tools: str) -> Script:
    """Play an episode of up to five turns."""
    draw = random.Random(f"{family.name} {seed}")
    is_plain = draw.random() < 0.6
    policy = ScriptedPolicy(family, draw, is_plain=is_plain)
    chat = [{"role": "user", "content": "Q" + words(draw, plain=is_plain)}]
    if draw.random() < 0.5:
        chat.insert(0, {"role": "system", "content": "S" + words(draw, plain=True)})
    told, tools = shown(family, chat, tools)
    record = EpisodeRecord(text.encode_text(policy.tokenizer, Prompt(chat=told, tools=tools)))
    talk = Conversation(record, policy.sample, boundary, sampling=Sampling(max_tokens=1000), limits=LIMITS)
    messages: list[ChatMessage] = list(chat)
    place, context, is_asked_again = FROM_PROMPT, list[int](), False
    for _ in range(draw.randint(1, 5)):
        policy.next_role = draw.choice(["user", "tool", "tool"])
        place = await talk.say(TurnContext(place, context))
        answers = list(answered(draw, policy.next_role, plain=is_plain))
        if family.answers_calls:
            answers = [
                {**answer, "name": policy.calls[-1][0]} if answer["role"] == "tool" else answer for answer in answers
            ]
        is_asked_again |= any(answer["role"] == "user" for answer in answers)
        last_ids = record.turns[place].completion.completion_ids
        context = boundary.after(answers, last_ids)
        messages += [boundary.message(last_ids), *answers]
    return Script(messages, record, policy.sampled, policy.calls, context, is_plain, is_asked_again)


def answered(draw: random.Random, role: str, *, plain: bool) -> Iterator[ChatMessage]:
    for _ in range(draw.choice([1, 1, 2, 3]) if role == "tool" else 1):
        yield {"role": role, "content": words(draw, plain=plain)}
    if role == "tool" and draw.random() < 0.1:
        yield {"role": "user", "content": words(draw, plain=plain)}


def words(draw: random.Random, *, plain: bool, without: Collection[str] = ()) -> str:
    pieces = [piece for piece in (NEUTRAL if plain else PIECES) if piece not in without]
    return "".join(draw.choices(pieces, k=draw.randint(1, 8)))
