"""One request on its way through the slots, and who wrote which of its tokens."""

from asyncrl.messages import Span
from asyncrl.rollout.engine import Request


class Job:
    """A request, where it is decoded, and under which weights. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request) -> None:
        begun = request.begun
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
        self._marks = [(span.policy_version, span.start) for span in (begun.spans if begun else [])]

    @property
    def num_begun(self) -> int:
        """Completion tokens written elsewhere."""
        return len(self.given_logprobs)

    @property
    def seconds_begun(self) -> float:
        """Seconds it took there."""
        return self.request.begun.generate_s if self.request.begun else 0.0

    def turn(self, policy_version: int, written: int) -> None:
        """Credit tokens from number ``written`` on to ``policy_version``."""
        if self._marks and self._marks[-1][1] == written:
            self._marks.pop()
        if not self._marks or self._marks[-1][0] != policy_version:
            self._marks.append((policy_version, written))

    def spans(self, num_tokens: int) -> list[Span]:
        """Who wrote what, covering 0 .. ``num_tokens``."""
        ends = [start for _, start in self._marks[1:]] + [num_tokens]
        spans = [Span(version, start, end) for (version, start), end in zip(self._marks, ends, strict=True)]
        return spans if spans[-1].start < num_tokens else spans[:-1]  # The newest version may not have written yet.
