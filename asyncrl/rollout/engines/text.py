"""Tokenizer functions shared by the engines."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from asyncrl.errors import DataError, EngineError
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines.special_tokens import SpelledTokens
from asyncrl.vision.picture import check_marks, expand, marked_chat, marked_text
from asyncrl.vision.processor import ImageProcessor

TemplateKwargs = Mapping[str, str | int | float | bool]
"""``data.chat_template_kwargs``."""
NO_KWARGS: TemplateKwargs = MappingProxyType({})


def encode_text(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    template_kwargs: TemplateKwargs = NO_KWARGS,
    spelled: SpelledTokens | None = None,
) -> list[int]:
    """Token ids of a prompt: text with the tokenizer's defaults, or a chat through its template."""
    if bool(prompt.text) == bool(prompt.chat):
        raise EngineError(
            f"expected a prompt with either text or chat, got {'both' if prompt.text else 'neither'}", retryable=False
        )
    return token_ids(tokenizer, prompt.text or prompt.chat, template_kwargs, prompt.tools, spelled)


def token_ids(
    tokenizer: PreTrainedTokenizerBase,
    content: str | Sequence[Mapping[str, Any]],
    template_kwargs: TemplateKwargs,
    tools: str = "",
    spelled: SpelledTokens | None = None,
) -> list[int]:
    """
    Token ids of plain text, or of a chat's messages, whose content may be a list of parts, with ``Prompt.tools``.

    ``spelled`` is that of the tokenizer; None makes it, which takes milliseconds.
    """
    if isinstance(content, str):
        if tools:
            raise EngineError(
                "the prompt has tools, but plain text has no place for them; write it as a chat", retryable=False
            )
        return list(tokenizer(content).input_ids)
    if not tokenizer.chat_template:
        raise EngineError(
            "the prompt is a chat, but the tokenizer has no chat template; use plain text", retryable=False
        )
    spelled = spelled or SpelledTokens(tokenizer)
    rendered = tokenizer.apply_chat_template(
        spelled.quoted(list(content)),
        tools=spelled.quoted(read_tools(tools)) or None,
        add_generation_prompt=True,
        tokenize=False,
        **template_kwargs,
    )
    return spelled.encode(str(rendered))


def read_tools(tools: str) -> list[dict[str, Any]]:
    """``Prompt.tools`` as a list; empty without any. Raises a final `EngineError` if it is none."""
    try:
        return msgspec.json.decode(tools, type=list[dict[str, Any]]) if tools else []
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EngineError(f"the tools of the prompt are no JSON list of objects: {error}", retryable=False) from error


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Text without special tokens, spaces unchanged."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def stop_window(stop: list[str]) -> int:
    """Number of last tokens to search for a stop string that ends at the newest token."""
    # A character has at most 4 bytes and a token at least one; 8 more tokens may decode to nothing.
    return 4 * max(map(len, stop)) + 8


# ── prompts ───────────────────────────────────────────────────────────────────────────────────
# Token ids of prompts, with and without pictures. The ids are expanded: a picture has all of its image tokens.

READS_NONE = "a prompt has pictures, but the model reads none; use a Qwen3-VL or Qwen2.5-VL, or prompts of text"


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    template_kwargs: TemplateKwargs = NO_KWARGS,
    processor: ImageProcessor | None = None,
    spelled: SpelledTokens | None = None,
) -> list[int]:
    """
    Token ids of a prompt; ``processor`` is None if the model reads no pictures, ``spelled`` as in `text.token_ids`.

    Raises a final `EngineError` if the model cannot read the prompt's pictures, or their number is not that of marks.
    """
    if processor is None:
        if prompt.images:
            raise EngineError(READS_NONE, retryable=False)
        return encode_text(tokenizer, prompt, template_kwargs, spelled)
    try:
        counts = [processor.num_tokens(processor.grid(image.width, image.height)) for image in prompt.images]
        collapsed = _collapsed(tokenizer, prompt, template_kwargs, processor, spelled)
        return expand(collapsed, counts, processor.image_token_id)
    except DataError as error:
        raise EngineError(str(error), retryable=False) from error


def _collapsed(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    template_kwargs: TemplateKwargs,
    processor: ImageProcessor,
    spelled: SpelledTokens | None,
) -> list[int]:
    """Collapsed token ids: one image token for each picture."""
    if not prompt.images:
        return encode_text(tokenizer, prompt, template_kwargs, spelled)
    check_marks(prompt)
    if prompt.chat:
        return token_ids(tokenizer, marked_chat(prompt.chat), template_kwargs, prompt.tools, spelled)
    placeholder = "".join(tokenizer.convert_ids_to_tokens(list(processor.placeholder_ids)))
    return token_ids(tokenizer, marked_text(prompt.text, placeholder), template_kwargs, prompt.tools)
