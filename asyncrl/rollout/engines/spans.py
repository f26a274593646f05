"""Who wrote which tokens of one completion, noted while it is being written."""

from collections.abc import Iterable

from asyncrl.messages import Span


class Spans:
    """
    Begins empty, or with what was written elsewhere.

    Args:
        begun: Contiguous, from 0 on.
    """

    def __init__(self, begun: Iterable[Span] = ()) -> None:
        self._marks = [(span.policy_version, span.start) for span in begun]

    def turn(self, policy_version: int, written: int) -> None:
        """Credit tokens from number ``written`` on to ``policy_version``."""
        if self._marks and self._marks[-1][1] == written:
            self._marks.pop()
        if not self._marks or self._marks[-1][0] != policy_version:
            self._marks.append((policy_version, written))

    def until(self, num_tokens: int) -> list[Span]:
        """Contiguous, covering 0 .. ``num_tokens``."""
        ends = [start for _, start in self._marks[1:]] + [num_tokens]
        marked = zip(self._marks, ends, strict=True)
        return [Span(version, start, min(end, num_tokens)) for (version, start), end in marked if start < num_tokens]
