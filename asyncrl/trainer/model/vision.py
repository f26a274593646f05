"""
Vision tower of a model that reads pictures.

    pixels of distinct pictures ─ tower ─▶ features ─ tokens ─▶ one for each picture's token of the row ─▶ body

On every rank the tower runs once in a pass, over one blank picture that no token shows if the row has none: ranks
among which it is sharded wait for each other, and all of its parameters are in the graph.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.trainer.packing.pictures import Pictures

PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
"""Files of a model directory by which engines and trainer read pictures."""


def vision_tower(model: Any) -> nn.Module | None:
    """Vision tower of a transformers model; None if it reads no pictures."""
    tower: nn.Module | None = getattr(model.base_model, "visual", None)
    return tower


def freeze_tower(model: Any, source: str) -> None:
    """Train no parameter of the vision tower; raises `ConfigError` if the model, named by ``source``, has none."""
    if (tower := vision_tower(model)) is None:
        raise ConfigError(
            f"trainer.freeze_vision is true, but {source}, a {type(model).__name__}, has no vision tower; set it to "
            f"false"
        )
    tower.requires_grad_(False)


def refuse_critic(model: Any, source: str) -> None:
    """Raise `ConfigError` if a policy, named by ``source``, reads pictures: no value model does."""
    if vision_tower(model) is not None:
        raise ConfigError(
            f'algorithm.advantage = "gae" has a critic, which reads no pictures, but {source}, a '
            f"{type(model).__name__}, does; use an advantage without a critic, such as 'grpo'"
        )


def picture_features(model: Any, pictures: Pictures | None, device: torch.device) -> dict[str, Any]:
    """Arguments of the model's body that hold what its tower sees; none without a tower."""
    if (tower := vision_tower(model)) is None:
        return {}
    pictures = pictures or _blank(tower, device)
    seen = model.base_model.get_image_features(pictures.pixels, pictures.grids, return_dict=True)
    seen.pooler_output = [_shown(seen.pooler_output, pictures)]
    if hasattr(seen, "deepstack_features"):
        seen.deepstack_features = [[_shown(layer, pictures)] for layer in seen.deepstack_features]
    return {"mm_encoder_outputs": {"image": seen}}


def _shown(features: tuple[Tensor, ...], pictures: Pictures) -> Tensor:
    """[M, H] feature of each picture's token, from those of each picture."""
    return torch.cat(features)[pictures.tokens]


def _blank(tower: Any, device: torch.device) -> Pictures:
    """The smallest picture, shown by no token."""
    sizes = tower.config
    side, patch = sizes.spatial_merge_size, sizes.in_channels * sizes.temporal_patch_size * sizes.patch_size**2
    return Pictures(
        pixels=torch.zeros(side**2, patch, device=device),
        grids=torch.tensor([[1, side, side]], device=device),
        tokens=torch.zeros(0, dtype=torch.long, device=device),
    )


class ProcessorFiles:
    """Settings by which a model's pictures are read, as a checkpoint keeps them: the files as they were."""

    def __init__(self, model: Path) -> None:
        self._files = {name: (model / name).read_bytes() for name in PROCESSOR_FILES if (model / name).is_file()}

    def save_pretrained(self, save_directory: Path, /) -> None:
        """Write the files into a folder."""
        for name, content in self._files.items():
            (save_directory / name).write_bytes(content)
