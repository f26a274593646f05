"""One request on its way through the slots."""

from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.spans import Spans


class Job:
    """A request, where it is decoded, and under which weights. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request) -> None:
        begun = request.resume_from
        self.request = request
        self.given = tuple(request.prompt_ids) + tuple(begun.completion_ids if begun else ())
        """Prompt, and what was written elsewhere: what jobs that may share a prefill have in common."""
        self.given_logprobs = begun.behavior_logprobs if begun else []
        """Of what was written elsewhere."""
        self.prompt_tokens = len(request.prompt_ids)
        """L."""
        sampling = request.sampling
        self.is_filtered = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)
        """Whether it draws from some of the vocabulary only."""
        self.is_plain = sampling.temperature == 1 and not self.is_filtered
        """Whether it draws from what the model says, as it is."""
        self.slot = -1
        """-1 while it waits."""
        self.begun_at = 0
        """The slot table's step count at which it had no token yet."""
        self.begun_s = 0.0
        """When it got its slot, by the performance counter."""
        self.prompt_version = 0
        """Under which weights the keys and values of ``given`` were computed."""
        self.spans = Spans(begun.spans if begun else [])
        """Who wrote what."""

    @property
    def num_begun(self) -> int:
        """Completion tokens written elsewhere."""
        return len(self.given_logprobs)

    @property
    def seconds_begun(self) -> float:
        """Seconds it took there."""
        return self.request.resume_from.generate_s if self.request.resume_from else 0.0
