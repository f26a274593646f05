"""A request while vLLM serves it."""

import hashlib
import time
import uuid
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.algo.routing import from_routing, to_routing
from asyncrl.engine import Completion, Request
from asyncrl.errors import DataError, EngineError
from asyncrl.messages.trajectory import Routing
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines.limits import Masks, Spans
from asyncrl.rollout.engines.text import READS_NONE
from asyncrl.vision.picture import collapse, decode, picture_size
from asyncrl.vision.positions import Grid
from asyncrl.vision.processor import ImageProcessor

# ── pictures ──────────────────────────────────────────────────────────────────────────────────
# Conversion of a request's pictures for vLLM.
#
#     prompt ids, expanded ─ collapse ─▶ one token for each picture, which vLLM expands itself
#     files ─ decode, resize ─▶ pictures, with the files' digests as their names in vLLM's caches
#
# vLLM resizes pictures with torchvision, whose filter differs from pillow's in the last bits. So pictures are resized
# here, to the size that vLLM would choose, and it only normalises and cuts them. If the limits of a picture's area
# are close to each other, vLLM would resize some of these again; it gets such a picture in its original size.


class VllmPictures:
    """Pictures of one prompt. Raises a final `EngineError` if one is damaged or does not match its image tokens."""

    def __init__(self, request: Request, processor: ImageProcessor) -> None:
        try:
            resized = processor.resized(request.images)
            self.grids: list[Grid] = [processor.grid(*picture_size(file)) for file in request.images]
            self._pictures = [
                picture if processor.grid(*picture.size) == grid else decode(file)
                for picture, grid, file in zip(resized, self.grids, request.images, strict=True)
            ]
            counts = [processor.num_tokens(grid) for grid in self.grids]
            self.collapsed_ids = collapse(request.prompt_ids, counts, processor.image_token_id)
            """Token ids of the prompt, with one image token for each picture."""
        except DataError as error:
            raise EngineError(str(error), retryable=False) from error
        self.processor = processor.version
        self._digests = [sha256(file).hexdigest() for file in request.images]

    def prompt_parts(self) -> dict[str, Any]:
        """Pictures and digests as vLLM's prompt has them. Requests with equal digests share one run of the encoder."""
        return {"multi_modal_data": {"image": self._pictures}, "multi_modal_uuids": {"image": self._digests}}


def placed(request: Request, processor: ImageProcessor | None) -> VllmPictures | None:
    """Pictures of a request; None if it has none. ``processor`` is None if the model reads no pictures."""
    if processor is None:
        if request.images:
            raise EngineError(READS_NONE, retryable=False)
        return None
    if request.images or processor.image_token_id in request.prompt_ids:
        return VllmPictures(request, processor)
    return None


# ── request ───────────────────────────────────────────────────────────────────────────────────

if TYPE_CHECKING:
    from asyncrl.rollout.engines.vllm.adapter import VllmOutput


class VllmRequest:
    """A request and its id in vLLM. Compared by identity: two requests may be equal."""

    def __init__(
        self, request: Request, pictures: "VllmPictures | None" = None, expert_layers: Sequence[int] = ()
    ) -> None:
        """``expert_layers`` are the indices of layers with experts, among all layers that vLLM reports."""
        self._expert_layers = list(expert_layers)
        resumed = request.resume_from
        self.request = request
        self.resumed_ids = resumed.completion_ids if resumed else []
        self._pictures = pictures
        self.prompt_ids = (pictures.collapsed_ids if pictures else request.prompt_ids) + self.resumed_ids
        """Prompt for vLLM: the request's own prompt and the resumed tokens."""
        self.num_prompt_tokens = len(request.prompt_ids) + len(self.resumed_ids)
        """Number of its tokens when pictures are expanded."""
        self.spans = Spans(resumed.spans if resumed else [])
        self.id = ""
        self.restarts = False
        """The request is being aborted in vLLM, to start again under new weights."""
        self._start_s = time.perf_counter()

    @property
    def num_resumed(self) -> int:
        return len(self.resumed_ids)

    @property
    def prompt(self) -> dict[str, Any]:
        """Prompt for vLLM, with its pictures."""
        return {"prompt_token_ids": self.prompt_ids} | (self._pictures.prompt_parts() if self._pictures else {})

    @property
    def seed(self) -> int | None:
        """The request's seed. A resumed request hashes it with its length, so as not to repeat its first draws."""
        seed = self.request.seed
        if seed is None or not self.resumed_ids:
            return None if seed is None else seed % 2**63
        digest = hashlib.blake2b(f"{seed} {self.num_resumed}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % 2**63

    def begin(self, policy_version: int) -> None:
        """Take a new id and credit tokens to ``policy_version``. Called before every submission to vLLM."""
        self.id, self.restarts = f"asyncrl-{uuid.uuid4().hex}", False
        self.spans.set_version(policy_version, self.num_resumed)

    def completion(self, output: "VllmOutput", finish_reason: FinishReason) -> Completion:
        """The resumed tokens followed by vLLM's."""
        resumed = self.request.resume_from
        token_ids = self.resumed_ids + output.token_ids
        masks = Masks(resumed)
        for mask in output.masks if self.request.sampling.replay_mask else ():
            masks.add(mask)
        return Completion(
            completion_ids=token_ids,
            behavior_logprobs=(resumed.behavior_logprobs if resumed else []) + output.logprobs,
            spans=self.spans.until(len(token_ids)),
            finish_reason=finish_reason,
            grids=list(self._pictures.grids) if self._pictures else [],
            processor=self._pictures.processor if self._pictures else "",
            generate_s=(resumed.generate_s if resumed else 0.0) + time.perf_counter() - self._start_s,
            mask_counts=masks.counts,
            mask_ids=masks.ids,
            routing=self._routing(output, len(token_ids)) if self.request.sampling.replay_routes else None,
        )

    def _routing(self, output: "VllmOutput", num_tokens: int) -> Routing | None:
        """Experts of all tokens but the last; resumed tokens keep the experts recorded before."""
        if output.experts is None:
            return None
        experts = output.experts[: len(self.request.prompt_ids) + num_tokens - 1, self._expert_layers]
        resumed = self.request.resume_from
        if resumed and resumed.routing:
            before = from_routing(resumed.routing)
            experts = np.concatenate((before, experts[len(before) :].astype(before.dtype)))
        return to_routing(experts)
