"""
Decoding of pictures with limits, because a file of a dataset may be damaged or made to exhaust the memory.

The limit is compared with the size in the file's header, before a pixel is decoded. A rotation noted in a photograph's
EXIF is not applied: the picture is read as it is stored.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain, repeat
from typing import Any

import numpy as np
from PIL import Image

from asyncrl.errors import DataError
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt
from asyncrl.vision.positions import picture_starts

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. A file with several pictures is read as its first."""
MAX_PIXELS = 64 * 2**20
"""Most pixels of a picture, 8192 x 8192: 200 MB decoded. A model reads at most a quarter of them."""


def picture_size(content: bytes) -> tuple[int, int]:
    """Width and height of a file's picture, pixels, by its header. Raises `DataError` as `decode`."""
    with _opened(content) as picture:
        return picture.size


def decode(content: bytes) -> Image.Image:
    """Picture of a file in RGB. Raises `DataError` if it is damaged, of another format, or has over `MAX_PIXELS`."""
    with _opened(content) as picture:
        try:
            return picture.convert("RGB")
        except Exception as error:  # a damaged file may raise anything
            raise DataError(f"a picture is damaged: {_in_words(error)}; replace the file") from error


def _opened(content: bytes) -> Image.Image:
    """Read the header of a file. Raises `DataError` if it is not a picture, or has over `MAX_PIXELS`."""
    try:
        picture = Image.open(BytesIO(content), formats=FORMATS)
    # pillow has a limit of its own, and only warns below twice that: here both are the same error.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"a picture is too large: {_in_words(error)}; the limit is {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # a damaged file may raise anything
        raise DataError(
            f"a picture of {len(content):,} bytes cannot be read: {_in_words(error)}; expected a file in "
            f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        ) from error
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise DataError(
            f"a picture is too large: {width} x {height} is {width * height:,} pixels, the limit is {MAX_PIXELS:,}; "
            f"make it smaller"
        )
    return picture


def _in_words(error: Exception) -> str:
    """Message of pillow's error without the address of the buffer that it names."""
    return str(error).partition(" <_io.BytesIO")[0] or type(error).__name__


# ── placeholders ──────────────────────────────────────────────────────────────────────────────
# Tokens that stand for pictures in a prompt.
#
#     "<image> How many?" ─ mark ─▶ <|vision_start|><|image_pad|><|vision_end|> How many?        collapsed: 1 a picture
#                                         │
#                                       expand ─▶ one <|image_pad|> for each token of the picture
#                                       collapse ◀─
#
# Trajectories hold the expanded ids. vLLM takes the collapsed ids and expands them itself.


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
