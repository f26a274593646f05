"""Forward pass with pictures in the prefill, by transformers' own code of the model."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.rollout.engines.transformers.forward import ModelForward
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures, VisionTower, mrope
from asyncrl.vision.encoded import ENCODED


class PictureForward(ModelForward):
    """
    `Forward` that always passes positions [3, B, P] to the model.

    Without them transformers (5.19) reuses offsets stored on the module, which belong to another batch.
    """

    def __init__(self, model: PreTrainedModel, cache: KVCache, tower: VisionTower) -> None:
        super().__init__(model, cache)
        self._tower = tower

    def _inputs(self, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None]) -> dict[str, Any]:
        # Padding may have image tokens of an earlier request, and the model would expect a picture at each.
        real = self._columns[: ids.shape[1]] < lengths[:, None]
        inputs = {"input_ids": ids.where(real, 0)}
        if not placed:
            return inputs | {"position_ids": self._columns[: ids.shape[1]].expand(3, *ids.shape)}
        features = self._tower.see(placed)
        seen = SimpleNamespace(
            pooler_output=[features.embeddings], deepstack_features=[[layer] for layer in features.deepstack]
        )
        return inputs | {
            "position_ids": mrope(placed, ids.shape[1], ids.device),
            ENCODED: {"image": seen},
        }

    def _position_ids(self, rotary: Tensor) -> Tensor:
        return rotary[:, None].expand(3, -1, -1)
