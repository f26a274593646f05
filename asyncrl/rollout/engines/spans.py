"""Policy version of every token of one completion, recorded while the completion is decoded."""

from collections.abc import Iterable

from asyncrl.messages.trajectory import Span


class Spans:
    """Spans of a completion that is being decoded, after those of the completion it resumes from."""

    def __init__(self, resumed: Iterable[Span] = ()) -> None:
        self._starts = [(span.policy_version, span.start) for span in resumed]

    def set_version(self, policy_version: int, num_tokens: int) -> None:
        """Credit the tokens from index ``num_tokens`` on to ``policy_version``."""
        if self._starts and self._starts[-1][1] == num_tokens:
            self._starts.pop()
        if not self._starts or self._starts[-1][0] != policy_version:
            self._starts.append((policy_version, num_tokens))

    def until(self, num_tokens: int) -> list[Span]:
        """Contiguous spans that cover 0 .. ``num_tokens``."""
        ends = [start for _, start in self._starts[1:]] + [num_tokens]
        bounds = zip(self._starts, ends, strict=True)
        return [Span(version, start, min(end, num_tokens)) for (version, start), end in bounds if start < num_tokens]
