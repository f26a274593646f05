"""One request on its way through vLLM."""

import hashlib
import time
import uuid
from typing import TYPE_CHECKING

from asyncrl.messages import FinishReason
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engines.spans import Spans

if TYPE_CHECKING:
    from asyncrl.rollout.engines.vllm.adapter import Drawn


class Job:
    """A request in vLLM, under names of its own. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request) -> None:
        begun = request.resume_from
        self.request = request
        self.prompt_tokens = len(request.prompt_ids)
        self.given = request.prompt_ids + (begun.completion_ids if begun else [])
        """What vLLM takes for the prompt."""
        self.num_begun = len(self.given) - self.prompt_tokens
        """Completion tokens written elsewhere."""
        self.spans = Spans(begun.spans if begun else [])
        self.id = ""
        """vLLM's."""
        self.begins_anew = False
        """What vLLM has of it is aborted, for it to begin under other weights."""
        self._begun_s = time.perf_counter()

    @property
    def seed(self) -> int:
        """The request's own if it begins here; else one more of its kind, or its first draws would be made twice."""
        if not self.num_begun:
            return self.request.seed % 2**63
        digest = hashlib.blake2b(f"{self.request.seed} {self.num_begun}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % 2**63

    def begin(self, policy_version: int) -> None:
        """Before vLLM gets it, again if need be."""
        self.id, self.begins_anew = f"asyncrl-{uuid.uuid4().hex}", False
        self.spans.turn(policy_version, self.num_begun)

    def completion(self, drawn: "Drawn", finish_reason: FinishReason) -> Completion:
        """With what was written elsewhere before it."""
        begun = self.request.resume_from
        token_ids = self.given[self.prompt_tokens :] + drawn.token_ids
        return Completion(
            completion_ids=token_ids,
            behavior_logprobs=(begun.behavior_logprobs if begun else []) + drawn.logprobs,
            spans=self.spans.until(len(token_ids)),
            finish_reason=finish_reason,
            generate_s=(begun.generate_s if begun else 0.0) + time.perf_counter() - self._begun_s,
        )
