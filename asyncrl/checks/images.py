"""
Check of a trajectory's pictures: those of its prompt, with a grid of patches each.

    "cause: what was found, and expected", or "" as `asyncrl.checks.trajectory.problem_of`

Whether a grid is the right one is the trainer's to check, which cuts the pictures itself.
"""

from collections.abc import Sequence

from asyncrl.messages import Image, Trajectory

BAD_IMAGES = "other pictures than the prompt's"
BAD_GRIDS = "impossible grids of pictures"
BAD_PROCESSOR = "no version of a processor"

MAX_PATCHES_PER_TOKEN = 64
"""Patches that a model merges into a token of the prompt; known ones merge 4."""
MAX_VERSION = 500
"""Characters of the version of a processor."""


def image_problem_of(trajectory: Trajectory, images: Sequence[Image]) -> str:
    """Reason for which a trajectory of a prompt with these pictures must not be used; empty if there is none."""
    if trajectory.images != list(images):
        return f"{BAD_IMAGES}: {_digests(trajectory.images)}, expected {_digests(images)}"
    return grid_problem_of(trajectory)


def grid_problem_of(trajectory: Trajectory) -> str:
    """The same without knowing the prompt: reason to refuse the grids, or the version of what cut them."""
    if len(trajectory.grids) != len(trajectory.images):
        return f"{BAD_GRIDS}: {len(trajectory.grids)}, expected one for each of {len(trajectory.images)} pictures"
    most = len(trajectory.prompt_ids) // 4 * MAX_PATCHES_PER_TOKEN
    patches = 0
    for t, h, w in trajectory.grids:
        patches += t * h * w
        if min(t, h, w) < 1 or patches > most:
            found = f"{t} x {h} x {w} patches"
            return f"{BAD_GRIDS}: {found}, expected at least one and, of all pictures, at most {most}"
    if len(trajectory.processor) > MAX_VERSION:
        return f"{BAD_PROCESSOR}: {len(trajectory.processor)} characters, expected at most {MAX_VERSION}"
    return ""


def _digests(images: Sequence[Image]) -> str:
    return ", ".join(image.digest.hex()[:12] for image in images) or "none"
