"""
Census of rows that can be used: held-out prompts that are trained on, repeated rows, lengths unlike the rest.

    train      a b c b ─┐      repeated 1
    held_out   d c e ───┴─▶    shared   1 of 3: the accuracy on it is not that of an unseen prompt

Two prompts are the same if their texts are, whatever their white space and roles, and their pictures and tools too.
"""

from array import array
from collections.abc import Collection, Iterable
from hashlib import blake2b

from asyncrl.messages.trajectory import Prompt

TIMES, LEAST_CHARS = 20, 2000
"""A prompt of so many times the median's characters, and at least so many, is unlike the rest."""


def prompt_key(prompt: Prompt) -> int:
    """64 bits of a digest of a prompt; 3 µs."""
    texts = [turn["content"] for turn in prompt.chat] or [prompt.text]
    digest = blake2b(" ".join(" ".join(texts).split()).encode("utf-8", "replace"), digest_size=8)
    digest.update(prompt.tools.encode())
    for image in prompt.images:
        digest.update(image.digest)
    return int.from_bytes(digest.digest(), "little")


def num_chars(prompt: Prompt) -> int:
    """Characters of a prompt, with those of its tools."""
    return len(prompt.text) + sum(len(turn["content"]) for turn in prompt.chat) + len(prompt.tools)


class Remarks:
    """Clauses about single rows, such as `asyncrl.data.row.remarks` makes, with their number and the first row."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, clauses: Iterable[str], place: str) -> None:
        for clause in clauses:
            count, first = self._found.get(clause, (0, place))
            self._found[clause] = (count + 1, first)

    def sentences(self, num_rows: int) -> list[str]:
        """One for each clause, such as ``3 of 90 rows have 'meta', which ...; the first: train.jsonl line 7``."""
        return [
            f"{count:,} of {num_rows:,} rows {clause}; the first: {first}"
            for clause, (count, first) in self._found.items()
        ]


class Census:
    """Facts about the rows of a dataset; add each row in order, None for one that cannot be used. 8 bytes a row."""

    def __init__(self) -> None:
        self.remarks = Remarks()
        self.keys = array("Q")
        """Key of the prompt of each row, 0 for one that cannot be used."""
        self.num_without_answer = 0
        self._lengths = array("Q")

    def add(self, prompt: Prompt | None) -> None:
        self.keys.append(prompt_key(prompt) if prompt else 0)
        if prompt:
            self._lengths.append(num_chars(prompt))
            self.num_without_answer += not prompt.answer

    @property
    def num_usable(self) -> int:
        return len(self._lengths)

    def sentences(self, *, are_tasks: bool = False) -> list[str]:
        """
        A clause about each thing that is odd, such as ``3 of 90 rows repeat the prompt of an earlier one``.

        With ``are_tasks`` an environment tells rows of one prompt apart, and only `Remarks` count.
        """
        told = self.remarks.sentences(self.num_usable)
        if are_tasks:
            return told
        counts = {
            "repeat the prompt of an earlier one": self.num_usable - len(set(self.keys) - {0}),
            "have no answer, and the others have one": self.num_without_answer % max(self.num_usable, 1),
            f"are more than {TIMES} times as long as the median": self._num_outlying(),
        }
        return [f"{count:,} of {self.num_usable:,} rows {what}" for what, count in counts.items() if count] + told

    def _num_outlying(self) -> int:
        ordered = sorted(self._lengths)
        bound = max(LEAST_CHARS, TIMES * ordered[len(ordered) // 2]) if ordered else 0
        return sum(length > bound for length in ordered)


def num_shared(held_out: Iterable[int], trained: Collection[int]) -> int:
    """Number of held-out prompts, by key, that are also trained on."""
    known = set(trained)
    return sum(key in known for key in held_out)


def shared_sentence(num_shared: int, num_held_out: int) -> str:
    """``12 of 256 held-out prompts are among those trained on``, which an accuracy says nothing about."""
    return f"{num_shared:,} of {num_held_out:,} held-out prompts are among those trained on"
