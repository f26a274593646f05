"""
Open episodes of a node by their capabilities.

    open ─▶ OpenEpisode: base_url http://127.0.0.1:41233/e/<capability>/v1, key <capability> ─▶ close

A capability is 256 random bits. It is looked up by its hash, so that the time of a look-up tells nothing of it.
"""

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from hashlib import sha256
from typing import get_args

from asyncrl.engine import ChatMessage
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.gateway.episode import Counts, OpenEpisode
from asyncrl.episodes.gateway.lineage import Lineage
from asyncrl.episodes.gateway.request import Wishes, normal
from asyncrl.episodes.record import RecordedTurn
from asyncrl.messages.words import Unenforced

CAPABILITY_BYTES = 32


class Gateway:
    """
    Opens episodes to agent programs, each by a capability in its URL.

    Args:
        url: By which programs reach the app, such as ``http://127.0.0.1:9000``, with the path below which a host
            mounts it; `server.serve` sets it.
        model: Name of the policy in the list of models.
        allowed: Fields of requests that may be ignored; ``environment.gateway_ignores``.
        refused: Forms of replies that are refused; ``environment.gateway_refuses``.
        as_template: ``environment.history`` is ``as_template``.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        url: str = "",
        *,
        model: str = "policy",
        allowed: Collection[str] = (),
        refused: Collection[Unenforced] = (),
        as_template: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.url = url
        self.model = model
        self.counts = Counts()
        """Counts of all episodes together."""
        self._wishes = partial(Wishes, allowed, refused)
        self._as_template = as_template
        self._clock = clock
        self._open: dict[bytes, OpenEpisode] = {}

    def open(
        self,
        conversation: Conversation,
        messages: Sequence[ChatMessage],
        tools: str = "",
        *,
        earlier: Sequence[RecordedTurn] = (),
    ) -> OpenEpisode:
        """
        Admit a program to an episode.

        Args:
            messages: The prompt as the program's task has it; `TaskInput.messages`.
            tools: The prompt's tools, as `Prompt.tools`.
            earlier: Turns of a record that another node stored, in which an ``unfinished`` one is to be continued. The
                program runs again, and gets them as long as it asks the same.
        """
        prompt = normal(list(messages))
        asked = conversation.pictures.with_prompt(prompt)
        capability = secrets.token_urlsafe(CAPABILITY_BYTES)
        name = _hash(capability)
        self._open[name] = episode = OpenEpisode(
            conversation,
            [Lineage(None if seat else asked, tools) for seat in range(conversation.limits.seats)],
            prompt=prompt,
            base_url=f"{self.url}/e/{capability}/v1",
            key=capability,
            reward_url=f"{self.url}/e/{capability}/reward",
            wishes=self._wishes,
            as_template=self._as_template,
            earlier=earlier,
            counts=self.counts,
            close=lambda: self._open.pop(name, None),
            clock=self._clock,
        )
        return episode

    @property
    def unenforced(self) -> list[Unenforced]:
        """Forms of replies that programs of this node have asked for, and that nothing enforces."""
        return [name for name in get_args(Unenforced) if self.counts[f"unenforced_{name}"]]

    def find(self, capability: str) -> OpenEpisode | None:
        """The open episode with this capability; None if there is none."""
        return self._open.get(_hash(capability))


def _hash(capability: str) -> bytes:
    return sha256(capability.encode("utf-8", "replace")).digest()
