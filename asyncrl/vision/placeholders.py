"""
Tokens that stand for pictures in a prompt.

    "<image> How many?" ─ mark ─▶ <|vision_start|><|image_pad|><|vision_end|> How many?        collapsed: 1 a picture
                                        │
                                      expand ─▶ one <|image_pad|> for each token of the picture
                                      collapse ◀─

Trajectories hold the expanded ids. vLLM takes the collapsed ids and expands them itself.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from asyncrl.errors import DataError
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt
from asyncrl.vision.positions import picture_starts


def check_marks(prompt: Prompt) -> None:
    """Raise `DataError` unless a prompt has one mark for each picture. Without pictures the mark is ordinary text."""
    texts = [prompt.text, *(message.get("content", "") for message in prompt.chat)]
    marks = sum(text.count(IMAGE_MARK) for text in texts)
    if prompt.images and marks != len(prompt.images):
        raise DataError(
            f"a prompt has {len(prompt.images)} pictures, but {marks} marks {IMAGE_MARK} for their places; write "
            f"{IMAGE_MARK} once for each picture"
        )


def marked_text(text: str, placeholder: str) -> str:
    """Plain text with the special tokens ``placeholder`` at the place of each picture."""
    return text.replace(IMAGE_MARK, placeholder)


def marked_chat(chat: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Messages with content as a list of texts and pictures, for which the chat template writes the special tokens."""
    return [{**message, "content": list(_parts(message.get("content", "")))} for message in chat]


def expand(token_ids: Sequence[int], counts: Sequence[int], image_token_id: int) -> list[int]:
    """
    Repeat the n-th image token ``counts[n]`` times.

    Raises `DataError` unless there is one image token for each picture: a prompt's text may spell the token itself.
    """
    found = sum(token == image_token_id for token in token_ids)
    if found != len(counts):
        raise DataError(
            f"a prompt has {found} tokens for pictures (id {image_token_id}) after tokenization, but {len(counts)} "
            f"pictures; the text must not spell this token, and the chat template must write it once for each picture"
        )
    times = iter(counts)
    return list(
        chain.from_iterable(repeat(token, next(times) if token == image_token_id else 1) for token in token_ids)
    )


def collapse(token_ids: Sequence[int], counts: Sequence[int], image_token_id: int) -> list[int]:
    """Undo `expand`. Raises `DataError` unless the n-th picture has ``counts[n]`` adjacent image tokens."""
    ids = np.asarray(token_ids)
    kept = np.ones(len(ids), dtype=bool)
    for start, count in zip(picture_starts(ids, counts, image_token_id), counts, strict=True):
        kept[start + 1 : start + count] = False
    return [int(token) for token in ids[kept]]


def _parts(content: str) -> Iterator[dict[str, str]]:
    for number, text in enumerate(content.split(IMAGE_MARK)):
        if number:
            yield {"type": "image"}
        if text:
            yield {"type": "text", "text": text}
