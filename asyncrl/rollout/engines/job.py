"""One request on its way through the slots, and who wrote which of its tokens."""

from asyncrl.messages import Span
from asyncrl.rollout.engine import Request


class Job:
    """A request, where it is decoded, and under which weights. Compared by identity: two requests may be equal."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt = tuple(request.prompt_ids)
        """What jobs that may share a prefill have in common."""
        self.prompt_tokens = len(self.prompt)
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
        """Whose keys and values the prompt has in the cache."""
        self._marks: list[tuple[int, int]] = []

    def turn(self, policy_version: int, written: int) -> None:
        """Credit tokens from number ``written`` on to ``policy_version``."""
        if self._marks and self._marks[-1][1] == written:
            self._marks.pop()
        if not self._marks or self._marks[-1][0] != policy_version:
            self._marks.append((policy_version, written))

    def spans(self, num_tokens: int) -> list[Span]:
        """Who wrote what, covering 0 .. ``num_tokens``."""
        ends = [start for _, start in self._marks[1:]] + [num_tokens]
        return [Span(version, start, end) for (version, start), end in zip(self._marks, ends, strict=True)]
