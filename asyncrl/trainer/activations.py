"""
Memory of a forward and backward pass, found by running the model itself on tensors without memory (torch's ``meta``).

    bytes ▲            ╱╲╱╲
          │          ╱      ╲       what layers keep for the backward pass, and what their backward takes
          │        ╱          ╲
          └────── layers ─ head ─ layers ──▶
                 forward    backward

Operations on ``meta`` compute shapes alone, so a model of any size takes seconds, and any family of models is counted
by its own code. Two things are assumed of the device: attention is one kernel, which keeps queries, keys, values, its
output and a normaliser; and libraries take no workspace. With expert parallelism routing is assumed to be even: as many
rows arrive at a rank as leave it. Weights, their gathered copies and gradients are not counted.
"""

import weakref
from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import AttentionInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from asyncrl.algo.logprobs import MEASURED_EVERY, score_states
from asyncrl.algo.routing import expert_modules
from asyncrl.config.config import Config
from asyncrl.trainer.model.host_memory import Checkpointing, enable_checkpointing
from asyncrl.trainer.model.loading import packed_states
from asyncrl.trainer.model.vision import vision_tower
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.packed_attention import packed_attention, picture_attention, set_attention
from asyncrl.trainer.packing.step import TrainingTrajectory, TrajectorySize, assign_ranks, micro_batches, num_tokens
from asyncrl.trainer.ranks.experts import Routes, compute
from asyncrl.trainer.ranks.ranks import SequenceGroup

# ── planned pictures ──────────────────────────────────────────────────────────────────────────
# Forward pass of a model with a vision tower on meta tensors, to plan its memory.
#
# Every prompt counts as one picture from its first token to its last, the case in which the tower has the most
# patches.

META = torch.device("meta")


class AllOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Context in which an operation on CPU and meta tensors together runs on meta tensors only.

    A tower computes indices from the sizes of pictures, which are on the CPU, and uses them on patches, which are not.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        if len({leaf.device for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}) > 1:
            given = tree_map(lambda leaf: leaf.to(META) if isinstance(leaf, Tensor) else leaf, given)
        return func(*given[0], **given[1])


def pictured_states(model: Any, batch: MicroBatch) -> Tensor:
    """Last hidden states [W, H] of a row whose prompts are pictures. The model must have a vision tower."""
    num_prompt_tokens = batch.num_packed - sum(max(length - 1, 0) for length in batch.lengths)  # of the whole row
    features = _features(model, min(num_prompt_tokens, batch.input_ids.numel()))
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


# ── activations ───────────────────────────────────────────────────────────────────────────────

PLANNED, PLANNED_PICTURES = "asyncrl_planned", "asyncrl_flash_planned_pictures"
"""Names of the attention functions in transformers; see `PICTURES`."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """
    Counts the bytes of tensors that operations make in this block, until they are freed. Counts any device's tensors.

    Memory of ``known`` tensors is not counted, nor what an operation frees before it returns.
    """

    def __init__(self, *known: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        """Bytes of each storage that is alive."""
        self._known = [tensor.untyped_storage() for tensor in known]
        self.now = 0
        self.peak = 0

    def restart(self) -> int:
        """Begin a new peak; returns the one so far."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = _on_meta(func)(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return out

    def add(self, tensor: Tensor) -> None:
        """Count a tensor, unless its memory is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._free, key)
            self.resize(key, storage.nbytes())

    def resize(self, key: int, num_bytes: int) -> None:
        """Count a storage, by its address, with another size."""
        self.now += num_bytes - self._sizes[key]
        self._sizes[key] = num_bytes
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def largest_micro_batch(config: Config, num_ranks: int) -> MicroBatch:
    """
    The micro-batch with the most tokens of a step in which every prompt and every completion has the longest length.

    It has no memory. If ranks share its row, it is the part with the most completion tokens.
    """
    schedule, trainer = config.schedule, config.trainer
    sharing = trainer.sequence_parallel
    num_groups = -(-schedule.groups_per_step // trainer.mini_batches)
    one = TrajectorySize(0, config.data.max_prompt_tokens, config.longest_written("train"))
    sizes = [one._replace(group_id=group) for group in range(num_groups) for _ in range(schedule.group_size)]
    owned = [size for size, rank in zip(sizes, assign_ranks(sizes, num_ranks, sharing), strict=True) if rank == 0]
    cuts = [[owned[i] for i in cut] for cut in micro_batches(owned, trainer.max_tokens_per_micro_batch * sharing)]
    trajectories = [_trajectory(size, place) for place, size in enumerate(max(cuts, key=num_tokens))]
    parts = (collate(trajectories, device=META, group=SequenceGroup(sharing, index)) for index in range(sharing))
    return max(parts, key=lambda part: len(part.token_ids))


class PassBytes(NamedTuple):
    """Peak bytes of the phases of a pass, in which different weights are gathered."""

    head: int
    """Peak until the gradient of the last hidden states is computed."""
    layers: int
    """Peak from the gradient of the last hidden states until that of the embedded tokens."""
    inputs: int
    """Bytes of the inputs of layers that are kept to recompute the layers, on the device or on the host."""
    tower: int = 0
    """Peak from the gradient of the embedded tokens until that of a vision tower."""

    @property
    def peak(self) -> int:
        return max(self.head, self.layers, self.tower)


class LayerInputs(saved_tensors_hooks):
    """Counts what is saved for the backward pass inside a block. With ``leave`` it leaves the device until then."""

    def __init__(self, *, leave: bool) -> None:
        super().__init__(self._save, self._bring)
        self._leave = leave
        self.num_bytes = 0

    def _save(self, tensor: Tensor) -> Tensor | tuple[Any, ...]:
        if not tensor.is_floating_point():
            return tensor
        self.num_bytes += tensor.nbytes
        return (tensor.shape, tensor.dtype, tensor.device) if self._leave else tensor

    @staticmethod
    def _bring(saved: Tensor | tuple[Any, ...]) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        shape, dtype, device = saved
        return torch.empty(shape, dtype=dtype, device=device)


def pass_bytes(
    model: Any,
    batch: MicroBatch,
    *,
    dtype: torch.dtype,
    entropy: bool = False,
    checkpointing: Checkpointing = False,
    offload: bool = False,
    expert_ranks: int = 0,
    chunk: int | None = None,
) -> PassBytes:
    """
    Peak bytes of scoring a micro-batch and of its backward pass, gradients of weights excluded.

    Args:
        model: Causal language model on ``meta``; it is changed, and cannot be used for anything else.
        dtype: Dtype that is computed with.
        entropy: The entropy of each token is in the loss; that of a few is computed in any case.
        checkpointing: Activations to recompute; see `enable_checkpointing`.
        offload: The inputs of layers that are recomputed wait on the host.
        expert_ranks: Ranks over which experts are spread (expert parallelism); 0 computes all of them here.
        chunk: Logits of the device at a time; None is those of a CPU. See `chunk_logits`.
    """
    inputs = LayerInputs(leave=offload)
    AttentionInterface.register(PLANNED, _planned_attention)
    AttentionInterface.register(PLANNED_PICTURES, _planned_picture_attention)
    set_attention(model, PLANNED, PLANNED_PICTURES)
    if checkpointing:
        enable_checkpointing(model, "model.path", checkpointing, inputs=inputs)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if expert_ranks:
        _spread_experts(model, expert_ranks)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_drop)
    head, peaks = model.get_output_embeddings(), list[int]()
    weight = head.weight.detach().requires_grad_(head.weight.requires_grad)  # else a tied one is kept to the end
    if weight.requires_grad:
        weight.register_post_accumulate_grad_hook(_drop)
    with LiveBytes(*model.parameters(), *model.buffers()) as live, AllOnMeta():  # type: ignore[no-untyped-call]

        def mark(_: Tensor) -> None:
            peaks.append(live.restart())

        def begin_tower(_: Tensor) -> None:
            live.restart()

        def mark_backward(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(mark)  # type: ignore[no-untyped-call]

        embedding = model.get_input_embeddings()
        embedding.register_forward_hook(mark_backward)
        if embedding.weight.requires_grad:
            embedding.weight.register_post_accumulate_grad_hook(begin_tower)
        whole = pictured_states(model, batch) if vision_tower(model) else packed_states(model.base_model, batch)
        states = whole[batch.positions]
        del whole
        states.register_hook(mark)  # type: ignore[no-untyped-call]
        how: dict[str, Any] = {"dtype": dtype, "entropy": 1 if entropy else MEASURED_EVERY, "chunk": chunk}
        scores = score_states(states, weight, head.bias, batch.token_ids, temperature=1.0, **how)
        del states
        terms = scores.logprobs + scores.entropy if entropy and scores.entropy is not None else scores.logprobs
        torch.autograd.backward(terms.sum())
    before, after = [*peaks, live.peak][:2]
    has_gradients = any(weight.requires_grad for weight in (vision_tower(model) or nn.Module()).parameters())
    return PassBytes(before, after, inputs.num_bytes, live.peak if has_gradients else 0)


def _trajectory(size: TrajectorySize, place: int) -> TrainingTrajectory:
    # Equal beginnings are shared, so groups have different prompts, and trajectories different completions.
    prompt, completion = np.full(size.prompt, size.group_id, np.int32), np.full(size.completion, place, np.int32)
    return TrainingTrajectory(size.group_id, prompt, completion, np.zeros(size.completion, np.float32), 0.0)


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def _on_meta(func: Any) -> Callable[..., Any]:
    """``func``, but for any dtype: on ``meta``, the grouped product insists on bfloat16."""
    if func is not torch.ops.aten._grouped_mm.default:
        return func  # type: ignore[no-any-return]

    def grouped_product(first: Tensor, second: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not first.is_meta:
            return func(first, second, *args, **kwargs)
        return func(first.bfloat16(), second.bfloat16(), *args, **kwargs).to(first.dtype)

    return grouped_product


def _planned_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`packed_attention`, with one kernel in place of what torch does on ``meta``: the product of all pairs."""
    with _OneKernel():  # here and not around the pass, because layers that are recomputed leave such blocks
        return packed_attention(module, *args, **kwargs)


def _planned_picture_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`picture_attention` with one kernel in place of what torch does on ``meta``, as in `_planned_attention`."""
    with _OneKernel():
        return picture_attention(module, *args, **kwargs)


def _spread_experts(model: Any, ranks: int) -> None:
    """Keep the experts of one rank, as they are stored: float32."""
    for experts in expert_modules(model):
        for name, whole in experts.named_parameters(recurse=False):
            own = torch.empty(len(whole) // ranks, *whole.shape[1:], device=META, dtype=torch.float32)
            experts.register_parameter(name, nn.Parameter(own, requires_grad=whole.requires_grad))
    ALL_EXPERTS_FUNCTIONS.register(PLANNED, _planned_experts)
    model.set_experts_implementation(PLANNED)


def _planned_experts(experts: Any, states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """`spread_experts`, with as many rows for this rank's experts as its own tokens have."""
    order = torch.empty_like(indices.flatten())
    ends = torch.empty(len(experts.down_proj), dtype=torch.int32, device=META)
    routes = Routes(order, [len(order)], [len(order)], order, ends, group=None)
    return compute(experts, states, weights, routes, (experts.gate_up_proj, experts.down_proj))


class _OneKernel(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _Attention.apply(*args[:3])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _allocated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(query[..., : value.shape[-1]])  # a latent model's values are narrower than its keys
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


_attention_kernel = torch.library.custom_op("asyncrl::planned_attention", _allocated, mutates_args=())
"""An operation by whose name selective checkpointing finds attention."""
_attention_kernel.register_fake(_allocated)


class _Attention(torch.autograd.Function):
    """[B, heads, L, D] attention that allocates what a kernel does, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor
        out, normaliser = _attention_kernel(query, key, value)
        ctx.save_for_backward(query, key, value, out, normaliser)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        query, key, value, _out, _normaliser = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
