"""
Load a pretrained transformers model for training: float32, without dropout, with packed attention.

    config.json ─▶ model without weights ─▶ sharded over ranks ─▶ memory for this rank's part ◀─ its slices of the files
                   make_model              load                                                   *.safetensors

No process holds more of the model than its part, nor more of a file than one slice. Files in another form than the
trainer's checkpoints, such as ones with fused experts, are converted by transformers: each process reads all of them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from math import prod
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from asyncrl.algo.logprobs import ready_kernels
from asyncrl.config.model.directory import require_directory
from asyncrl.config.model.weights import check_weights, weight_files
from asyncrl.errors import BrokenInvariant, ConfigError
from asyncrl.log import get_logger
from asyncrl.plug_in import describe
from asyncrl.trainer.model.architecture import lacking, mismatch, read_architecture
from asyncrl.trainer.model.route_replay import HeldExperts
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.ranks.experts import require_experts
from asyncrl.trainer.ranks.sharding import Computation, local_rows, lone_mesh, shard_model
from asyncrl.weights.contents.architecture import NONE, on_meta, require_held, set_generation_config
from asyncrl.weights.contents.names import View, checkpoint_views, saved_tensors

# ── norms ─────────────────────────────────────────────────────────────────────────────────────
# Norms of a model in torch's own kernel.
#
#     x ─ float32 ─ square ─ mean ─ rsqrt ─ · x ─ dtype ─ · weight      eight kernels, which keep as many tensors
#     x ─ rms_norm ─▶                                                   one, which rounds once
#
# Models of transformers write their norms out. On a GPU these take as long as the matrix products of small models.


def fuse_norms(model: nn.Module) -> int:
    """Let the norms of a model that are root-mean-square norms be one operation; returns how many are."""
    fits: dict[type[nn.Module], bool] = {}
    num_fused = 0
    for norm in model.modules():
        kind = type(norm)
        if kind not in fits:
            fits[kind] = _is_root_mean_square(norm)
        if fits[kind]:
            norm.forward = MethodType(_fused, norm)
            num_fused += 1
    return num_fused


def _fused(norm: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def _is_root_mean_square(norm: nn.Module) -> bool:
    """True if a module gives what torch's operation gives: its class says little, as some add 1 to their weights."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not (isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(eps, float)):
        return False
    generator = torch.Generator().manual_seed(0)
    probe: Any = copy(norm)
    probe._parameters = {"weight": nn.Parameter(torch.rand(len(weight), generator=generator) + 0.5)}
    hidden = torch.randn(3, len(weight), generator=generator) * torch.tensor([[1e-3], [1.0], [30.0]])
    with torch.no_grad():
        return torch.allclose(probe(hidden), _fused(probe, hidden), rtol=1e-5, atol=1e-6)


# ── slices ────────────────────────────────────────────────────────────────────────────────────
# The part of each checkpoint tensor that this rank holds.
#
#     parameter     rows 0 ··· 7 of experts.gate_up_proj [8, 2I, H]        rank 0 holds rows 0 to 3, rank 1 the others
#     checkpoint    experts.5.up_proj.weight [I, H]                        lies in row 5: all of it is rank 1's
#                   model.embed_tokens.weight [V, H]                       each rank has half of its rows
#
# A parameter is sharded by rows, its first dimension. A checkpoint tensor is a strided view of a parameter, so what a
# rank has of it is a range along one dimension of the view, or all of it, or nothing.


def local_slices(
    parameters: Mapping[str, Tensor], views: Iterable[View]
) -> Iterator[tuple[str, tuple[slice, ...], Tensor]]:
    """
    Non-empty slices that this rank holds of the checkpoint tensors of parameters, which may be sharded by rows.

    Each is the name of a checkpoint tensor, the index of the elements in it, and a view of this rank's memory for them.
    """
    for view in views:
        tensor = parameters[view.parameter].detach()
        local, rows = local_rows(tensor)
        index = held(view, tuple(tensor.shape), rows)
        if index is not None:
            starts = sum(part.start * stride for part, stride in zip(index, view.stride, strict=True))
            of_others = rows.start * prod(tensor.shape[1:])  # elements before this rank's rows
            offset = local.storage_offset() + view.offset + starts - of_others
            sizes = [part.stop - part.start for part in index]
            yield view.name, index, local.as_strided(sizes, view.stride, offset)


def held(view: View, shape: tuple[int, ...], rows: range) -> tuple[slice, ...] | None:
    """Index of a view's elements that lie in these rows of its parameter, which has ``shape``; None if none does."""
    row_items = prod(shape[1:])
    if not row_items * len(rows):
        return None
    first = view.offset // row_items
    index = [slice(0, size) for size in view.shape]
    across = [dim for dim, size in enumerate(view.shape) if size > 1 and view.stride[dim] >= row_items]
    if len(across) > 1:
        raise BrokenInvariant(f"{view.name} goes through the rows of {view.parameter} along dimensions {across}")
    if not across:
        return tuple(index) if first in rows else None
    (dim,) = across
    step = view.stride[dim] // row_items
    start, stop = (min(max(-(-(row - first) // step), 0), view.shape[dim]) for row in (rows.start, rows.stop))
    index[dim] = slice(start, stop)
    return tuple(index) if start < stop else None


# ── weight files ──────────────────────────────────────────────────────────────────────────────
# Safetensors files of a model directory, read slice by slice: only the bytes that are asked for.


@contextmanager
def open_weights(model: Path) -> Iterator[dict[str, Any]]:
    """Open the files of a directory whose headers were checked: tensors to be sliced, in the dtype of their file."""
    with ExitStack() as stack:
        slices: dict[str, Any] = {}
        for path in weight_files(model):
            file = stack.enter_context(safe_open(path, framework="pt"))
            slices |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        yield slices


# ── loading ───────────────────────────────────────────────────────────────────────────────────

log = get_logger()

MIXED = {torch.float32: 1e-4, torch.bfloat16: 0.02}
"""Relative difference of a token's state beyond which it saw another one: products of one shape round alike."""
OTHER = {torch.float32: 1e-4, torch.bfloat16: 0.25}
"""Relative difference beyond which a state may be of another computation: layers amplify the rounding of bfloat16."""
ROUNDINGS = 4.0
"""Bound of a state's difference, as a multiple of what one rounding of the embeddings does to the states."""


def make_model(path: Path, kind: Any, *, setting: str, overrides: Mapping[str, Any] = NONE, **options: object) -> Any:
    """
    Make a transformers model without weights; untyped, because transformers has no types.

    Args:
        kind: Auto class of transformers.
        setting: Configuration key of ``path``, for messages.
        overrides: ``model.overrides``.
        options: Further settings in place of those in config.json.

    Raises:
        ConfigError: There is no model of this kind.
    """
    source = f"{setting}={path}"
    shapes = check_weights(require_directory(str(path), setting), setting)
    config = read_architecture(path, setting, overrides)
    config.update(options)
    require_held(on_meta(kind, config, source), shapes, source)
    try:
        with _parameters_on_meta():
            model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        set_generation_config(model, path, overrides)
    except Exception as error:  # a wrong value in config.json may raise anything
        raise ConfigError(f"{source}: cannot load {_what(kind)}: {describe(error, __file__)}") from error
    model.eval()  # no dropout: its noise in the ratio would be clipped like a policy update
    return model


def load(
    path: Path,
    kind: Any,
    computation: Computation,
    *,
    setting: str,
    device: torch.device,
    mesh: DeviceMesh | None = None,
    dtype: torch.dtype = torch.float32,
    on_host: bool = False,
    may_lack: Collection[str] = (),
    expert_parallel: bool = False,
) -> None:
    """
    Shard a model from `make_model`, and load its weights. Collective if there is a ``mesh``.

    Args:
        computation: Contains the model.
        mesh: Ranks to shard over; None for this process alone.
        dtype: Dtype of all that is computed with the parameters, which keep their own.
        on_host: Keep parameters and gradients on the host, and bring a layer to the device to use it.
        may_lack: Weights that may be missing from the directory, and are zero then.
        expert_parallel: Leave experts on the ranks of the ``mesh`` that hold them; see `spread_experts`.

    Raises:
        ConfigError: There is no complete model of this kind with finite weights.
    """
    model: Any = computation.model
    if mesh is None and (dtype != torch.float32 or on_host):
        mesh = lone_mesh(device)
    views = checkpoint_views(model, saved_tensors(model))
    for module in computation.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    if mesh is not None:
        if expert_parallel:
            require_experts(model, mesh.size(mesh.ndim - 1), f"{setting}={path}")
        shard_model(model, computation, mesh, dtype, on_host=on_host, expert_parallel=expert_parallel)
    home = torch.device("cpu") if on_host else device  # of parameters, which have no memory yet
    computation._apply(lambda tensor: torch.empty_like(tensor, device=home) if tensor.is_meta else tensor)  # type: ignore[no-untyped-call]
    model.tie_weights()
    shapes = dict.fromkeys(may_lack, ()) | dict(check_weights(path, setting))
    if views and all(shapes.get(view.name) in (view.shape, ()) for view in views):  # as a checkpoint has them
        _read_slices(model, views, path, setting)
    else:
        log.info("model.converted", path=str(path), reason="its files have another form than checkpoints")
        _read_whole(model, path, kind, f"{setting}={path}", may_lack)


def freeze(model: nn.Module, dtype: torch.dtype) -> None:
    """Let a model from `make_model`, or its computation, keep its parameters in ``dtype``, without gradients."""
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def pack(computation: Computation, source: str, dtype: torch.dtype, device: torch.device) -> None:
    """
    Switch a loaded model, named by ``source``, to packed attention. Collective if it is sharded.

    ``dtype`` and ``device`` are those that are computed with.

    Raises:
        ConfigError: Packed sequences would see each other.
    """
    computation.run(_pack, computation.model, source, dtype, device)


def packed_states(body: nn.Module, batch: MicroBatch, **pictures: object) -> Tensor:
    """
    [W, H] last hidden states of the packed row, each sequence computed as if it were alone.

    ``pictures`` are those of `picture_features`, for a body that reads pictures.
    """
    return _states(body, batch.input_ids, position_ids=batch.position_ids, row=batch.row, **pictures)[0]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """
    Parameters of modules made in this block have no memory; buffers, which config.json determines, have values.

    Torch's meta device would leave the buffers without values too.
    """
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@torch.no_grad()
def _read_slices(model: nn.Module, views: Collection[View], path: Path, setting: str) -> None:
    tensors = saved_tensors(model)
    with open_weights(path) as files:
        for name, index, tensor in local_slices(tensors, views):
            if name in files:
                tensor.copy_(files[name][index])
                _require_finite(name, tensor, f"{setting}={path}")
            else:
                tensor.zero_()


@torch.no_grad()
def _read_whole(model: nn.Module, path: Path, kind: Any, source: str, may_lack: Collection[str]) -> None:
    """Load the model on the host as transformers converts it, and keep this rank's rows."""
    try:
        whole, info = kind.from_pretrained(
            path,
            config=model.config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, in one sentence
        )
    except Exception as error:  # as in `make_model`
        raise ConfigError(f"{source}: cannot load {_what(kind)}: {describe(error, __file__)}") from error
    if wrong := sorted(info["mismatched_keys"]):
        raise ConfigError(mismatch(source, *wrong[0]))
    if missing := sorted(set(info["missing_keys"]) - set(may_lack)):
        raise ConfigError(lacking(source, missing))
    tensors = saved_tensors(model)
    for name, weight in saved_tensors(whole).items():
        local, rows = local_rows(tensors[name])
        if name in info["missing_keys"]:
            local.zero_()
        elif weight.dim():
            local.copy_(weight[rows.start : rows.stop])
        else:
            local.copy_(weight)
        _require_finite(name, local, source)


def _require_finite(name: str, weight: Tensor, source: str) -> None:
    """Raise `ConfigError` if a weight is NaN or infinite: every trajectory would be garbage, and every step skipped."""
    if not weight.sum().isfinite() and not (finite := weight.isfinite()).all():
        raise ConfigError(
            f"{source}: the weight {name!r} has {(~finite).sum()} values that are NaN or infinite; copy the "
            f"directory again, or use an earlier checkpoint"
        )


def _pack(model: Any, source: str, dtype: torch.dtype, device: torch.device) -> None:
    """
    Switch a model to packed attention, and check with two short sequences that packing does not change their states.

    Two comparisons, because kernels and shapes differ in their rounding, which a model may amplify at will: a sequence
    must be the same beside another neighbour, within rounding of one kernel; and about the same as alone.
    """
    vocab_size = model.config.get_text_config().vocab_size
    # From all over the vocabulary: the first ids of many models are special, some of which no text has ever had.
    ids = torch.arange(1, 9, device=device)[None] * vocab_size // 10
    prompt, first, second = torch.split(ids, [3, 3, 2], 1)
    experts = HeldExperts(model)
    with ready_kernels(device):
        alone = [_states(model.base_model, torch.cat((prompt, rest), 1)) for rest in (first, second)]
    experts.held = [torch.cat((chosen[0], chosen[1][3:])) if chosen else None for chosen in experts.chosen]
    use_packed_attention(model)
    if device.type == "cuda":
        fuse_norms(model)
    row = Row([np.arange(6), np.array([0, 1, 2, 6, 7])], device)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4]], device=device)

    def packed(*parts: Tensor) -> Tensor:
        return _states(model.base_model, torch.cat(parts, 1), position_ids=positions, row=row)

    both = packed(prompt, first, second)
    others = (packed(prompt, prompt, second)[:, 6:], packed(prompt, first, prompt[:, :2])[:, 3:6])
    experts.remove()
    mixed = max(_difference(others[0], both[:, 6:]), _difference(others[1], both[:, 3:6]))
    expected = torch.cat((alone[0], alone[1][:, 3:]), 1)
    room = max(OTHER[dtype], ROUNDINGS * rounding(model, packed, (prompt, first, second), dtype))
    if not (mixed <= MIXED[dtype] and _difference(both, expected) <= room):
        raise ConfigError(
            f"{source}: {type(model).__name__} mixes the tokens of a row outside of attention, so packed sequences "
            f"would see each other; use a model with full or sliding attention in all of its layers"
        )


def rounding(model: Any, states: Callable[..., Tensor], parts: Sequence[Tensor], dtype: torch.dtype) -> float:
    """
    Largest difference of a token's states if its embedding is rounded in another way, relative as in `_pack`.

    Layers amplify what they are given, those of untrained tokens without bounds.
    """
    before = states(*parts)

    def round_up(module: nn.Module, arguments: object, embeddings: Tensor) -> Tensor:
        return embeddings + embeddings * torch.finfo(dtype).eps * (embeddings > 0)

    hook = model.get_input_embeddings().register_forward_hook(round_up)
    try:
        return _difference(states(*parts), before)
    finally:
        hook.remove()


def _difference(states: Tensor, expected: Tensor) -> float:
    """Largest difference of a token's states [1, W, H], relative to the mean norm of the expected ones."""
    norm = expected.float().norm(dim=-1).mean().clamp_min(torch.finfo(torch.float32).tiny)
    return float((states.float() - expected.float()).norm(dim=-1).max() / norm)


def _states(body: nn.Module, ids: Tensor, **options: object) -> Tensor:
    states: Tensor = body(input_ids=ids, use_cache=False, **options).last_hidden_state
    return states


def _what(kind: Any) -> str:
    return "a causal language model" if "Causal" in kind.__name__ else "a critic"
