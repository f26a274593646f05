"""
Check of a trajectory's pictures: those of its prompt, with a grid of patches each.

    "cause: what was found, and expected", or "" as `asyncrl.checks.trajectory.problem_of`

The trainer compares the grids with its own, because it cuts the pictures itself.
"""

from collections.abc import Sequence

from asyncrl.messages.trajectory import Image, Trajectory

BAD_IMAGES = "other pictures than the prompt's"
BAD_GRIDS = "impossible grids of pictures"
BAD_PROCESSOR = "no version of a processor"

MAX_PATCHES_PER_TOKEN = 64
"""Most patches that a model may merge into one image token; Qwen-VL models merge 4."""
MAX_VERSION = 500
"""Most characters of a processor's version."""


def image_problem_of(trajectory: Trajectory, images: Sequence[Image]) -> str:
    """Reason to refuse a trajectory of a prompt with these pictures; empty if there is none."""
    if trajectory.images != list(images):
        return f"{BAD_IMAGES}: {_digests(trajectory.images)}, expected {_digests(images)}"
    return grid_problem_of(trajectory)


def grid_problem_of(trajectory: Trajectory) -> str:
    """Reason to refuse a trajectory's grids or the version of its processor, whatever its prompt is; empty if none."""
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
