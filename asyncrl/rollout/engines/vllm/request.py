"""A request while vLLM serves it."""

import hashlib
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.algo.routing import from_routing, to_routing
from asyncrl.messages.trajectory import Routing
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engines.masks import Masks
from asyncrl.rollout.engines.spans import Spans

if TYPE_CHECKING:
    from asyncrl.rollout.engines.vllm.adapter import VllmOutput
    from asyncrl.rollout.engines.vllm.pictures import VllmPictures


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
