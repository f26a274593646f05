"""
Forward pass of Qwen3-VL models: that of Qwen3, with pictures in the prefill.

    pictures ─ vision tower ─▶ in place of the image tokens' embeddings
                          └──▶ added to the output of the first layers (Meng et al. 2024, arXiv:2406.04334)

A token has three rotary positions: time, row and column. For a text token they are equal, so a decoding step is that of
a text model, with the position shifted by the pictures before it.
"""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel, Qwen3VLForConditionalGeneration

from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.layer_kernels import Rotation
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures, VisionTower, mrope
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3Forward, fits_decoder


def fits(model: PreTrainedModel) -> bool:
    """True if `Qwen3VLForward` gives the same logits as the model itself."""
    return type(model) is Qwen3VLForConditionalGeneration and fits_decoder(model)


class Qwen3VLForward(Qwen3Forward):
    """`Forward` for prompts with and without pictures."""

    def __init__(self, model: PreTrainedModel, cache: KVCache, tower: VisionTower) -> None:
        super().__init__(model, cache)
        self._tower = tower
        self._image_token_id: int = model.config.image_token_id

    def prefill(
        self, slots: Tensor, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None] = ()
    ) -> None:
        if not placed:
            super().prefill(slots, ids, lengths)
            return
        row, position = real = self._real(ids, lengths)
        features = self._tower.see(placed)
        (at,) = (ids[real] == self._image_token_id).nonzero(as_tuple=True)
        hidden = self._embedded(ids[real]).index_copy_(0, at, features.embeddings.to(self._cos.dtype))
        cos, sin = self._rotations(mrope(placed, ids.shape[1], ids.device)[:, row, position][:, None])

        def add(layer: int, output: Tensor) -> None:
            if layer < len(features.deepstack):
                output.index_add_(0, at, features.deepstack[layer].to(output.dtype))

        self._run(hidden, (cos[:, None], sin[:, None]), self._prefilling(slots, real, ids.shape), add)

    def _rotations(self, positions: Tensor) -> Rotation:
        return super()._rotations(positions.expand(3, 1, -1))  # before transformers 5.19, only so
