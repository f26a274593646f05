"""
Pictures of one episode: the prompt's, and those that its environment or its agent program shows.

    {"type": "image", "data": bytes}  ─ taken ─▶  {"type": "image", "digest": "9f86d0…", "width": 640, "height": 480}
                                 └─▶ file, once by its digest

From here on messages have digests in place of files: they are compared, stored and rendered like text, and a history
that is sent again brings no file twice.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.data.images import describe
from asyncrl.engine import IMAGE, ChatMessage
from asyncrl.episodes.environment import Answer
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Image


class PictureLimits(Struct, frozen=True):
    """Limits of the pictures that an episode shows after its prompt, as `Environment` has them."""

    most: int
    """Distinct pictures."""
    num_bytes: int
    """Bytes of their files together."""


class PicturesExceeded(DataError):
    """The pictures of an episode exceed one of its limits, which has this name in ``environment``."""

    def __init__(self, limit: Literal["pictures", "picture_bytes"], problem: str) -> None:
        super().__init__(problem)
        self.limit: Literal["pictures", "picture_bytes"] = limit


class EpisodePictures:
    """
    Files of the pictures of one episode, each once.

    Args:
        prompt: Pictures of the prompt, in their order, and ``files``, their files.
        shown: Files that an earlier attempt was shown, by digest.
    """

    def __init__(
        self,
        limits: PictureLimits,
        prompt: Sequence[Image] = (),
        files: Sequence[bytes] = (),
        shown: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self._limits = limits
        self._files = tuple(files)
        self._of_prompt = {image.digest: file for image, file in zip(prompt, files, strict=True)}
        self.shown = {digest: file for digest, file in (shown or {}).items() if digest not in self._of_prompt}
        """Files that are not the prompt's, by digest."""
        self._num_bytes = sum(map(len, self.shown.values()))

    def with_shown(self, shown: Mapping[bytes, bytes]) -> "EpisodePictures":
        """Pictures of another attempt at the episode, of which an earlier one was ``shown`` these."""
        return EpisodePictures(self._limits, self.prompt, self._files, shown)

    async def taken(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """
        Messages with digests in place of files, which are kept.

        Raises `DataError` if one is no picture, `PicturesExceeded` if they exceed the limits of the episode.
        """
        return [
            {**message, "content": [await self._part(part) for part in content]}
            if isinstance(content := message.get("content"), list)
            else message
            for message in messages
        ]

    async def answer(self, answer: Answer) -> Answer:
        """An environment's answer, as `taken`."""
        return replace(answer, messages=await self.taken(answer.messages))

    def files(self, images: Sequence[Image]) -> tuple[bytes, ...]:
        """Files of pictures, in this order."""
        return tuple(self._of_prompt.get(image.digest) or self.shown[image.digest] for image in images)

    def images(self, messages: Sequence[ChatMessage]) -> list[Image]:
        """Pictures of messages that were `taken`, in their order."""
        return [self._image(part) for message in messages for part in pictures_of(message)]

    def with_prompt(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Messages of the prompt, with its pictures at their marks."""
        if not self.prompt:
            return list(messages)
        from asyncrl.vision.picture import marked_chat  # noqa: PLC0415  only pictures need pillow

        left = iter(self.prompt)
        return [
            {**message, "content": [part_of(next(left)) if is_picture(part) else part for part in message["content"]]}
            for message in marked_chat(messages)
        ]

    def _image(self, part: Mapping[str, Any]) -> Image:
        digest = bytes.fromhex(part["digest"])
        (file,) = self.files([Image(digest, 0, 0, 0)])
        return Image(digest, part["width"], part["height"], len(file))

    async def _part(self, part: Any) -> Any:
        return part_of(await self._kept(part)) if is_picture(part) else part

    async def _kept(self, part: Mapping[str, Any]) -> Image:
        content = file_of(part)
        image = describe(content)
        if image.digest in self._of_prompt or image.digest in self.shown:
            return image
        most, num_bytes = self._limits.most, self._num_bytes + len(content)
        if len(self.shown) >= most:
            problem = f"it shows more than {most} pictures in one episode; raise environment.pictures"
            raise PicturesExceeded("pictures", problem) if most else DataError(problem)
        if num_bytes > self._limits.num_bytes:
            problem = (
                f"the files of its pictures have {num_bytes:,} bytes in one episode, more than "
                f"environment.picture_bytes = {self._limits.num_bytes:,}; show smaller ones, or raise it"
            )
            is_alone = len(content) > self._limits.num_bytes  # whatever the policy wrote before
            raise DataError(problem) if is_alone else PicturesExceeded("picture_bytes", problem)
        self.shown[image.digest], self._num_bytes = content, num_bytes
        try:
            await asyncio.to_thread(_decode, content)
        except DataError:
            del self.shown[image.digest]
            self._num_bytes -= len(content)
            raise
        return image


def _decode(content: bytes) -> None:
    """Raise `DataError` if a file is damaged behind its header: the engine would be blamed for it."""
    from asyncrl.vision.picture import decode  # noqa: PLC0415  only pictures need pillow

    decode(content)


def file_of(part: Mapping[str, Any]) -> bytes:
    """File of a picture as an environment or a program gives it. Raises `DataError` if it has none."""
    data = part.get("data")
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise DataError(f"a picture has the keys {', '.join(map(str, part))}: expected its file as 'data'")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"a picture is not in base64: {error}") from error


def part_of(image: Image) -> dict[str, Any]:
    """A picture as a part of a message's content."""
    return {"type": IMAGE, "digest": image.digest.hex(), "width": image.width, "height": image.height}


def is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == IMAGE


def pictures_of(message: ChatMessage) -> Iterator[Mapping[str, Any]]:
    """Parts of a message that are pictures."""
    content = message.get("content")
    return (part for part in content if is_picture(part)) if isinstance(content, list) else iter(())
