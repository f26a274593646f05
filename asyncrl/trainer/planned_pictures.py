"""
Forward pass of a model with a vision tower on meta tensors, to plan its memory.

Every prompt counts as one picture from its first token to its last, the case in which the tower has the most patches.
"""

from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from asyncrl.trainer.model.vision import vision_tower
from asyncrl.trainer.packing.batch import MicroBatch

META = torch.device("meta")


class AllOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Context in which an operation on CPU and meta tensors together runs on meta tensors only.

    A tower computes indices from the sizes of pictures, which are on the CPU, and uses them on patches, which are not.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        if len({leaf.device for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}) > 1:
            given = tree_map(_without_memory, given)
        return func(*given[0], **given[1])


def pictured_states(model: Any, batch: MicroBatch) -> Tensor:
    """Last hidden states [W, H] of a row whose prompts are pictures. The model must have a vision tower."""
    features = _features(model, min(_prompt_tokens(batch), batch.input_ids.numel()))
    states = model.get_input_embeddings()(batch.input_ids)
    for each in features:
        states = states.index_add(1, torch.empty(len(each), dtype=torch.long, device=META), each[None])
    body = model.base_model.language_model
    positions = batch.position_ids.expand(3, 1, -1)
    out = body(inputs_embeds=states, position_ids=positions, row=batch.row, use_cache=False)
    found: Tensor = out.last_hidden_state[0]
    return found


def _features(model: Any, num_tokens: int) -> list[Tensor]:
    """Features [num_tokens, H] of one picture, for the input and for each layer that adds deepstack features."""
    sizes: Any = vision_tower(model).config  # type: ignore[union-attr]  # as the caller knows
    side = sizes.spatial_merge_size * (isqrt(max(num_tokens, 1) - 1) + 1)
    patch = sizes.in_channels * sizes.temporal_patch_size * sizes.patch_size**2
    pixels = torch.empty(side**2, patch, device=META)
    seen = model.base_model.get_image_features(pixels, torch.tensor([[1, side, side]]), return_dict=True)
    layers = [seen.pooler_output, *getattr(seen, "deepstack_features", ())]
    return [torch.cat(layer)[:num_tokens] for layer in layers]


def _prompt_tokens(batch: MicroBatch) -> int:
    """Number of prompt tokens in the whole row."""
    return batch.num_packed - sum(max(length - 1, 0) for length in batch.lengths)


def _without_memory(leaf: Any) -> Any:
    return leaf.to(META) if isinstance(leaf, Tensor) else leaf
