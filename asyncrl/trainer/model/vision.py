"""
Vision tower of a model that reads pictures.

    pixels of distinct pictures ─ tower ─▶ features ─ tokens ─▶ one for each picture's token of the row ─▶ body

Every rank runs the tower exactly once in a pass, over a blank picture that no token uses if its row has none: sharded
ranks wait for each other, and all parameters of the tower must be in the graph.
"""

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.trainer.packing.pictures import PackedPictures
from asyncrl.vision.processor import ENCODED


def vision_tower(model: Any) -> nn.Module | None:
    """Vision tower of a transformers model; None if it reads no pictures."""
    tower: nn.Module | None = getattr(model.base_model, "visual", None)
    return tower


def freeze_tower(model: Any, source: str) -> None:
    """Freeze the vision tower. Raises `ConfigError` if the model, which messages call ``source``, has none."""
    if (tower := vision_tower(model)) is None:
        raise ConfigError(
            f"trainer.freeze_vision is true, but {source}, a {type(model).__name__}, has no vision tower; set it to "
            f"false"
        )
    tower.requires_grad_(False)


def refuse_critic(model: Any, source: str) -> None:
    """Raise `ConfigError` if the policy, which messages call ``source``, reads pictures, because no critic does."""
    if vision_tower(model) is not None:
        raise ConfigError(
            f'algorithm.advantage = "gae" has a critic, which reads no pictures, but {source}, a '
            f"{type(model).__name__}, does; use an advantage without a critic, such as 'grpo'"
        )


def picture_features(model: Any, pictures: PackedPictures | None, device: torch.device) -> dict[str, Any]:
    """Arguments of the model's body with the features of pictures; empty without a tower."""
    if (tower := vision_tower(model)) is None:
        return {}
    pictures = pictures or _blank(tower, device)
    seen = model.base_model.get_image_features(pictures.pixels, pictures.grids, return_dict=True)
    seen.pooler_output = [_shown(seen.pooler_output, pictures)]
    if hasattr(seen, "deepstack_features"):
        seen.deepstack_features = [[_shown(layer, pictures)] for layer in seen.deepstack_features]
    return {ENCODED: {"image": seen}}


def _shown(features: tuple[Tensor, ...], pictures: PackedPictures) -> Tensor:
    """Features of the row's M image tokens, [M, H], selected from those of each picture."""
    return torch.cat(features)[pictures.tokens]


def _blank(tower: Any, device: torch.device) -> PackedPictures:
    """Pixels of the smallest picture, with no token that uses them."""
    sizes = tower.config
    side, patch = sizes.spatial_merge_size, sizes.in_channels * sizes.temporal_patch_size * sizes.patch_size**2
    return PackedPictures(
        pixels=torch.zeros(side**2, patch, device=device),
        grids=torch.tensor([[1, side, side]], device=device),
        tokens=torch.zeros(0, dtype=torch.long, device=device),
    )
