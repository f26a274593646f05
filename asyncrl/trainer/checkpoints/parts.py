"""
Which rank writes which tensor of a checkpoint.

    tensors, in order     a b c d e f g h         two ranks of a machine, about the same bytes each
                          └─ 0 ─┘ └─ 1 ─┘
    files                 model-00001-of-00002.safetensors, model-00002-of-00002.safetensors, and an index of the names

Each tensor is whole in one file, so a checkpoint is a Hugging Face directory from which any number of ranks can resume.
"""

from collections.abc import Mapping

from msgspec import Struct

MODEL = "model"
"""Stem of the files of weights."""
TENSORS = "trainer"
"""Folder of the tensors that are not weights of the model."""


class Part(Struct, frozen=True):
    """One of ``count`` parts of a checkpoint."""

    index: int = 0
    count: int = 1

    def file(self, stem: str) -> str:
        """Name of this part's file, as Hugging Face numbers them."""
        return (
            f"{stem}.safetensors" if self.count == 1 else f"{stem}-{self.index + 1:05}-of-{self.count:05}.safetensors"
        )


def stem_of(file: str) -> str:
    """The ``stem`` of the name of a part's file."""
    stem = file.removesuffix(".safetensors")
    return stem[: -len("-00001-of-00001")] if "-of-" in stem else stem


def divide(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Part of each tensor by its bytes: parts are contiguous and about equal."""
    total, before = max(sum(sizes.values()), 1), 0
    parts = {}
    for name, size in sizes.items():
        parts[name] = min(before * count // total, count - 1)
        before += size
    return parts
