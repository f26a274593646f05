"""A request while the slot table decodes it."""

from collections import deque

from asyncrl.algo.routing import from_routing
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.masks import Masks
from asyncrl.rollout.engines.spans import Spans
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures


class SlotJob:
    """A request and its slot. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request, placed: PlacedPictures | None = None) -> None:
        resumed = request.resume_from
        self.request = request
        self.prefix = tuple(request.prompt_ids) + tuple(resumed.completion_ids if resumed else ())
        """Prompt and resumed tokens."""
        self.placed = placed
        """Pictures of the prompt; None if it has none."""
        self.key = (self.prefix, placed.pictures.digests if placed else ())
        """Key by which jobs share a prefill: their tokens, and their pictures, because two may have equal tokens."""
        self.delta = placed.delta if placed else 0
        """Rotary position of a token after the prompt, minus its index in the sequence."""
        self.resumed_logprobs = resumed.behavior_logprobs if resumed else []
        self.resumed_s = resumed.generate_s if resumed else 0.0
        self.prompt_tokens = len(request.prompt_ids)
        sampling = request.sampling
        self.is_filtered = sampling.is_truncated
        """Draws from a part of the vocabulary."""
        self.is_plain = sampling.temperature == 1 and not self.is_filtered
        """Draws from the softmax of the logits, unchanged."""
        written = resumed.completion_ids if resumed else ()
        self.tail = deque(written, text.stop_window(sampling.stop) if sampling.stop else 0)
        """Newest completion tokens, as many as a stop string may end in; none without stop strings."""
        self.slot = -1
        """-1 while it waits for one."""
        self.start_step = 0
        """Step count of the slot table at which this completion had no token."""
        self.start_s = 0.0
        self.prefix_version = 0
        """Policy version that computed the keys and values of ``prefix``."""
        self.num_kept = 0
        """Tokens of ``prefix`` whose keys and values were in the cache before it got its slot."""
        self.spans = Spans(resumed.spans if resumed else [])
        self.masks = Masks(resumed)
        self.experts = from_routing(resumed.routing) if resumed and resumed.routing else None
        """Experts of the first tokens that another node or an earlier policy recorded; None if there are none."""

    @property
    def num_resumed(self) -> int:
        return len(self.resumed_logprobs)
