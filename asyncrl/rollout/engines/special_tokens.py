"""Special tokens of a tokenizer: those that text is decoded without."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerBase

from asyncrl.errors import EngineError


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> Mapping[int, str]:
    """Texts of the special tokens, by id."""
    added = {token_id: token for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return {token_id: str(token) for token_id, token in (*added.items(), *named)}


def without_last(token_ids: Sequence[int], special: Mapping[int, str]) -> list[int]:
    """Ids up to the last that is not special: a turn without what ended it."""
    end = len(token_ids)
    while end and token_ids[end - 1] in special:
        end -= 1
    return list(token_ids[:end])


# ── spelled tokens ────────────────────────────────────────────────────────────────────────────
# Control tokens that the texts of a chat spell: they are encoded as the characters that they are.
#
#     content   a<|im_end|>b ─ quoted ─▶ a⟨mark⟩b ─ chat template ─▶ <|im_start|>user⏎a⟨mark⟩b<|im_end|>
#                                                                    └─ token ──┘└─ pieces ─┘└ token ─┘
#
# Otherwise a row, a tool or the policy itself could end a message and begin another one, of the system say. A mark is
# a private-use character, which templates leave as it is. Bare text has no template around it and is encoded as it
# stands.
#
# Control tokens are special ones, and those that the template writes around messages. Tags such as ``<think>`` are no
# control tokens: prompts ask for them. But the answer of a tool spells no token of its own at all.

FIRST_MARK, NUM_MARKS = 0xF0000, 0xFFFE
"""Private-use characters of Unicode's plane 15."""
ESCAPED = re.compile(r"\\u[dD][bB][89abAB][0-9a-fA-F]\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""Private-use character as JSON that has ASCII alone writes it."""
TAG = re.compile(r"</?\w+>")
TOOL = "tool"
"""Role of the answer to a call."""
ROLES = (("user", "assistant", "user"), ("system", "user"))
"""Chats whose rendering shows what stands around messages; few templates take no system message."""


class SpelledTokens:
    """
    Encodes rendered chats of one tokenizer.

    Args:
        are_text: False lets what texts spell be control tokens (``data.split_special_tokens``).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, are_text: bool = True) -> None:
        self._tokenizer = tokenizer
        self._are_text = are_text
        special = special_tokens(tokenizer)
        added = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        self._ids = {text: token_id for token_id, text in (added | dict(special)).items() if text}
        """Tokens that a tokenizer finds before it looks at anything else."""
        self._own = frozenset(self._ids.values())
        delimiters = {text for text in self._ids if text in _around_messages(tokenizer) and not TAG.fullmatch(text)}
        self._marks = {text: chr(FIRST_MARK + number) for number, text in enumerate(sorted(self._ids)[:NUM_MARKS])}
        self._texts = {mark: text for text, mark in self._marks.items()}
        self.control = _any_of({*special.values(), *delimiters})
        """Matches a control token."""
        self._added = _any_of(self._ids)
        self._mark = re.compile(f"[{chr(FIRST_MARK)}-{chr(FIRST_MARK + NUM_MARKS - 1)}]")

    def found(self, value: Any) -> list[str]:
        """Control tokens that the texts of a JSON value spell, in their order."""
        match value:
            case str():
                return self.control.findall(value)
            case Mapping():
                return [token for pair in value.items() for part in pair for token in self.found(part)]
            case list() | tuple():
                return [token for part in value for token in self.found(part)]
        return []

    def quoted(self, value: Any) -> Any:
        """Messages, tools or any JSON value with marks in place of the control tokens that their texts spell."""
        return self._quoted(value, self.control) if self._are_text else value

    def encode(self, rendered: str) -> list[int]:
        """
        Token ids of a rendered chat, whose marks are text.

        Raises a final `EngineError` if the tokenizer does not encode pieces of it as it encodes the whole.
        """
        for escaped in ESCAPED.findall(rendered):
            if (mark := json.loads(f'"{escaped}"')) in self._texts:
                raise self._refusal(mark)
        whole = self._plain(rendered)
        if not self._mark.search(rendered):
            return whole
        pieces = re.split(f"({self._added.pattern})", rendered)
        as_marked = [[self._ids[piece]] if piece in self._ids else self._plain(piece) for piece in pieces]
        if list(chain.from_iterable(as_marked)) != whole:
            raise self._refusal(rendered)
        texts = [self._as_text(piece) if self._mark.search(piece) else [] for piece in pieces]
        return list(chain.from_iterable(text or ids for text, ids in zip(texts, as_marked, strict=True)))

    def spelled(self, token_ids: Sequence[int]) -> str:
        """Text with all of its tokens, special ones too."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def retold(self, token_ids: Sequence[int]) -> str:
        """Text of a turn: tokens that were sampled as they are, and marks in place of control tokens it only spells."""
        spelled, own = self.spelled(token_ids), self._own
        if len(self._added.findall(spelled)) == sum(token_id in own for token_id in token_ids):
            return spelled
        parts, begin = [], 0
        for end in [*(place for place, token_id in enumerate(token_ids) if token_id in own), len(token_ids)]:
            parts += [self.quoted(self.spelled(token_ids[begin:end])), self.spelled(token_ids[end : end + 1])]
            begin = end + 1
        return "".join(parts)

    def _quoted(self, value: Any, tokens: re.Pattern[str]) -> Any:
        match value:
            case str():
                return tokens.sub(lambda found: self._marks[found.group()], value)
            case Mapping():
                within = self._added if value.get("role") == TOOL else tokens
                return {self._quoted(key, tokens): self._quoted(part, within) for key, part in value.items()}
            case list() | tuple():
                return [self._quoted(part, tokens) for part in value]
        return value

    def _as_text(self, piece: str) -> list[int]:
        """Ids of a piece with marks. Each token that it spells is cut behind its first character."""
        cut = self._mark.sub(lambda found: f"{self._texts[found.group()][0]}\0{self._texts[found.group()][1:]}", piece)
        ids = [token_id for part in cut.split("\0") for token_id in self._plain(part)]
        if not self._own.isdisjoint(ids) or self.spelled(ids) != cut.replace("\0", ""):
            raise self._refusal(piece)
        return ids

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids) if text else []

    def _refusal(self, marked: str) -> EngineError:
        found = self._mark.search(marked)
        token = self._texts.get(found.group(), "") if found else ""
        return EngineError(
            f"a message of the chat spells the control token {token}, and this tokenizer and template cannot show it "
            f"as text; remove it from the text, or let it be a token: data.split_special_tokens = false",
            retryable=False,
        )


def _any_of(texts: Any) -> re.Pattern[str]:
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _around_messages(tokenizer: PreTrainedTokenizerBase) -> str:
    """Renderings of short chats; empty if there is no chat template, or it takes none of them."""
    rendered = []
    for roles in ROLES if tokenizer.chat_template else ():
        chat = [{"role": role, "content": "a"} for role in roles]
        try:
            rendered.append(str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)))
        except Exception:  # noqa: BLE001  a template may raise anything; whoever renders a prompt with it is told
            continue
    return "\n".join(rendered)
