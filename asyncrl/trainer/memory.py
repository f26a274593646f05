"""
Memory that a trainer will need, from its configuration and a model's config.json: no weight is read or made.

    phase         on each device                                              on the host of a machine
    load          weights, gradients, what the check of the model gathers     the largest slice of a file
    step          weights, gradients, moments, gathered layers, activations   staged versions
    publish       weights, gradients, moments, one gathered parameter         staged versions
    checkpoint    weights, gradients, moments, one gathered tensor            staged versions, a tensor to write
    resume        as load, and moments                                        the largest slice of a file

What `trainer.offload` names is on the host instead, and on the device when it is used.

Sizes come from the code that allocates: the parameters of the model on ``meta``, the rows of a rank (`chunk`, `held`),
the layers that are gathered together (``_no_split_modules``), the layout of a transfer (`Layout`), and a pass of the
model (`pass_bytes`). They are those of rank 0, which has no fewer rows than any other rank, and stages versions.

Formulas of what FSDP allocates were read in torch 2.13; W is bytes of an element as computed with (`model.dtype`):

    head           W for the root (embedding, last norm and head), and W for the first layer of the way back
    layers         W for the root and for the head's gradient; W for a layer, for the next one received, and for its
                   gradient, and 4 for the sum of the layer before
    embedding      W for the root and for its gradient, twice more if it is tied to the head; 4 for the sum of a layer
    tower          as the embedding; W for a layer, for the next one received, and for its gradient
    experts        with expert parallelism in no layer, but cast where they are computed: part of the pass
    sum            W + 4 for the root's gradient and its sum, or 4 for the sum and 4 for a rank's rows of it
    reference      W for the root, for a layer and for the next one received, if it is on the host otherwise
    update         a bucket of moments, if they are on the host otherwise

Rows that come from the host are on the device twice until they are gathered, in their own dtype and in W.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from transformers import AutoModelForTokenClassification, PreTrainedModel

from asyncrl.algo.logprobs import chunk_logits
from asyncrl.algo.routing import expert_modules
from asyncrl.config.config import Config
from asyncrl.config.memory import MemoryPart
from asyncrl.config.model.weights import INDEX, WHOLE, check_weights
from asyncrl.trainer.activations import largest_micro_batch, pass_bytes
from asyncrl.trainer.algorithm.recipe import VALUES, Recipe
from asyncrl.trainer.model.architecture import check_sequence_parallel, policy_class, read_architecture
from asyncrl.trainer.model.host_memory import BUCKET
from asyncrl.trainer.model.loading import held
from asyncrl.trainer.model.lora import Adapters
from asyncrl.trainer.model.vision import freeze_tower, refuse_critic, vision_tower
from asyncrl.trainer.ranks.experts import require_experts
from asyncrl.trainer.ranks.sharding import Computation, chunk
from asyncrl.weights.contents.architecture import NONE, on_meta
from asyncrl.weights.contents.layout import ITEM_BYTES, Layout
from asyncrl.weights.contents.names import View, checkpoint_specs, checkpoint_views, saved_tensors
from asyncrl.weights.groups.device import STAGED_ON

# ── sizes ─────────────────────────────────────────────────────────────────────────────────────
# Numbers of elements of a model that is sharded by rows: of all, of a rank, and of what is gathered together.
#
#     config.json ─ meta_model ─▶ model without weights ─ measure ─▶ Sizes


class ModelSizes(Struct, frozen=True, kw_only=True):
    """Numbers of elements of a model that is sharded by rows."""

    whole: int
    """Elements of all parameters."""
    whole_model: int
    """Elements of the model's parameters, without adapters."""
    trained: int
    own: int
    """Elements of a rank's rows; the same on every rank, because FSDP pads the last ones."""
    own_trained: int
    root: int
    """Elements outside of layers, such as those of embedding and head: gathered throughout a pass."""
    root_trained: int
    head_trained: int
    """Elements of the linear head that are trained."""
    layer: int
    """Elements of the largest layer that are gathered."""
    layer_trained: int
    parameter: int
    """Elements of the largest parameter."""
    slice: int
    """Elements of the largest part of a checkpoint's tensor that a rank reads at a time."""


def measure(
    model: nn.Module, computation: nn.Module, views: list[View], *, shards: int, expert_parallel: bool = False
) -> ModelSizes:
    """
    Count the elements of a model on ``meta``.

    Args:
        computation: Contains the model, and adapters.
        views: Of the model, as they are read from files; its buffers are read whole.
        shards: Ranks to shard over.
        expert_parallel: Experts stay with the ranks that hold them, so they are of no layer that is gathered.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    trained = {id(parameter) for parameter in computation.parameters() if parameter.requires_grad}
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [list(module.parameters()) for module in model.modules() if type(module).__name__ in kinds]
    inside = {id(parameter) for layer in layers for parameter in layer}
    if expert_parallel:
        stay = {id(parameter) for experts in expert_modules(model) for parameter in experts.parameters(recurse=False)}
        layers = [[parameter for parameter in layer if id(parameter) not in stay] for layer in layers]
    everything = list(computation.parameters())
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    root = [parameter for parameter in everything if id(parameter) not in inside]

    def of_trained(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if id(parameter) in trained]

    return ModelSizes(
        whole=_items(everything),
        whole_model=_items(list(model.parameters())),
        trained=_items(of_trained(everything)),
        own=_items(everything, shards),
        own_trained=_items(of_trained(everything), shards),
        root=_items(root),
        root_trained=_items(of_trained(root)),
        head_trained=_items(of_trained([] if head is None else list(head.parameters()))),
        layer=max(map(_items, layers), default=0),
        layer_trained=max((_items(of_trained(layer)) for layer in layers), default=0),
        parameter=max(prod(shape) for shape in shapes.values()),
        slice=max(
            (_slice_items(view, shape, shards) for view in views if (shape := shapes.get(view.parameter))), default=0
        ),
    )


def meta_model(path: Path, kind: Any, setting: str, overrides: Mapping[str, Any] = NONE, **options: object) -> Any:
    """
    A transformers model of a config.json with ``model.overrides``, without weights or buffers.

    Raises `ConfigError` if there is none.
    """
    config = read_architecture(path, setting, overrides)
    config.update(options)
    model = on_meta(kind, config, f"{setting}={path}", dtype=torch.float32, attn_implementation="sdpa")
    return model.eval()  # as it is trained


def _items(parameters: list[nn.Parameter], shards: int = 1) -> int:
    """Elements of a rank's rows of parameters."""
    return sum(len(chunk(range(p.shape[0]), shards, 0)) * prod(p.shape[1:]) if p.dim() else 1 for p in parameters)


def _slice_items(view: View, shape: tuple[int, ...], shards: int) -> int:
    rows = chunk(range(shape[0] if shape else 1), shards, 0)
    where = held(view, shape, rows) or ()
    return prod(part.stop - part.start for part in where) if where else 0


# ── memory ────────────────────────────────────────────────────────────────────────────────────

FLOAT32 = 4
MOMENTS = 8
"""Bytes of AdamW's two moments of an element."""


class Phase(Struct, frozen=True, kw_only=True):
    """Memory in use at one time: the sum of its parts."""

    name: str
    device: int
    host: int
    parts: list[MemoryPart]


def phase(name: str, *parts: MemoryPart) -> Phase:
    """A phase with the parts that are not empty."""
    device, host = (sum(getattr(part, place) for part in parts) for place in ("device", "host"))
    return Phase(name=name, device=device, host=host, parts=[part for part in parts if part.device or part.host])


class TrainerMemory:
    """
    Phases of one trainer.

    Args:
        path: Directory of the model; only its config.json has to be there.

    Raises:
        ConfigError: There is no such model, or one that the trainer cannot compute or train as configured.
    """

    def __init__(self, config: Config, path: Path) -> None:
        trainer = config.trainer
        self._config = config
        self._recipe = Recipe(config)
        self._num_ranks = trainer.nodes * trainer.ranks
        self._shards = trainer.shard_size or self._num_ranks
        self._item = ITEM_BYTES[config.model.dtype]
        self._offload = trainer.offload
        self._is_sharded = self._num_ranks > 1 or config.model.dtype != "float32" or "parameters" in self._offload
        source, overrides = f"model.path={path}", config.model.overrides
        model = meta_model(path, policy_class(path, overrides), "model.path", overrides)
        self.reads_pictures = vision_tower(model) is not None
        """True for a model with a vision tower."""
        check_sequence_parallel(model.config, trainer.sequence_parallel, source)
        self._experts_stay = trainer.expert_parallel
        if self._experts_stay:
            require_experts(model, self._shards, source)
        if trainer.freeze_vision:
            freeze_tower(model, source)
        self._views = checkpoint_views(model, saved_tensors(model))
        self.layout = Layout(checkpoint_specs(model, config.model.dtype), config.weights.bucket_bytes)
        """Layout of a transfer."""
        self._is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        in_files = str(getattr(model.config, "dtype", None) or "float32").removeprefix("torch.")
        self._file_item = ITEM_BYTES.get(in_files, FLOAT32)
        """Bytes of an element in the files, as config.json says."""
        self._is_read_whole = not _is_read_by_slices(path, self._views)
        self._adapters = Adapters(model, trainer.lora) if trainer.lora.rank else None
        computation = Computation(model, *filter(None, [self._adapters]))
        gathering: dict[str, Any] = {"shards": self._shards, "expert_parallel": self._experts_stay}
        self.sizes = measure(model, computation, self._views or [], **gathering)
        """Elements of the policy."""
        frozen = computation if trainer.lora.path else model
        self.reference = measure(model, frozen, [], **gathering) if self._recipe.has_reference else None
        """Elements of the frozen reference; None without one."""
        self.critic: ModelSizes | None = None
        """Elements of the value model; None without one."""
        if VALUES in self._recipe.wanted:
            refuse_critic(model, source)
            self.critic = _critic_sizes(config, path, **gathering)
        self.pass_bytes = pass_bytes(
            model,
            largest_micro_batch(config, self._num_ranks),
            dtype=getattr(torch, config.model.dtype),
            entropy=config.algorithm.entropy_coef > 0,
            checkpointing=trainer.gradient_checkpointing,
            expert_ranks=self._shards if self._experts_stay else 0,
            offload="activations" in self._offload,
            chunk=chunk_logits(trainer.device),
        )
        """Activations of the largest micro-batch; see `pass_bytes`."""

    def phases(self) -> list[Phase]:
        return [self.load(), self.step(), self.publish(), self.checkpoint(), self.resume()]

    def load(self) -> Phase:
        """
        Weights are float32 and sharded; gradients are made with the optimizer. The model is checked on a few tokens.

        A file's slice is read in its own dtype. Files in another form than checkpoints are read whole by every rank, as
        float32, and so is the model that transformers makes of them.
        """
        return phase("load", *self._weights(), self._gradients(), self._checked(), self._read(self._file_item))

    def step(self) -> Phase:
        """
        Memory of a training step at the fullest moment of its backward pass: in head, layers, embedding, or the root's
        sum.
        """
        inputs = MemoryPart(name="inputs of layers", host=self._per_machine(self.pass_bytes.inputs))
        away = [inputs] if "activations" in self._offload else []
        return phase("step", *self._state(), *self._computing(), *away, self._staged())

    def publish(self) -> Phase:
        """
        One parameter is gathered at a time, in the dtype to publish, while a step's state is kept. Gloo gathers into a
        buffer of its own first.

        Adapters are merged in float32: the whole weight and the sum. The families of models that store rows in another
        order than a checkpoint need all parameters at a time.
        """
        return phase("publish", *self._state(), self._gathered(self._item), *self._sending(), self._staged())

    def checkpoint(self) -> Phase:
        """
        One tensor is gathered at a time, in float32, and written by one of the first machine's ranks. The files wait in
        the page cache, which is not counted: the system gives it up as it needs memory.
        """
        items = self.sizes.parameter if self._config.trainer.device != "cpu" else 0  # there it is on the host already
        written = MemoryPart(name="tensor to write", host=FLOAT32 * items)
        return phase("checkpoint", *self._state(), self._gathered(FLOAT32), self._staged(), written)

    def resume(self) -> Phase:
        """Memory of loading a checkpoint: as `load`, and the moments, which are read by slices of float32."""
        return phase("resume", *self._state(), self._checked(), self._read(FLOAT32))

    @property
    def asleep(self) -> int:
        """Bytes that a rank moves to the host at the end of its turn at shared devices: all but gradients."""
        return sum(part.device for part in (*self._weights(), self._moments()))

    # ── parts ───────────────────────────────────────────────────────────────────────────────

    def _state(self) -> list[MemoryPart]:
        return [*self._weights(), self._gradients(), self._moments(), self._anchor()]

    def _weights(self) -> list[MemoryPart]:
        found = [self._kept("weights", "parameters", FLOAT32 * self.sizes.own)]
        if self.reference is not None:
            found.append(self._kept("reference", "reference", self._item * self.reference.own))
        if self.critic is not None:
            found.append(self._kept("critic", "parameters", FLOAT32 * self.critic.own))
        return found

    def _gradients(self) -> MemoryPart:
        return self._kept("gradients", "parameters", FLOAT32 * self._own_trained)

    def _moments(self) -> MemoryPart:
        home = "parameters" if "parameters" in self._offload else "moments"
        return self._kept("moments", home, MOMENTS * self._own_trained)

    def _anchor(self) -> MemoryPart:
        """Weights of the last publish, on the host."""
        num_bytes = FLOAT32 * self.sizes.own_trained if self._recipe.keeps_anchor else 0
        setting = 'algorithm.correction.anchor = "step"'
        return MemoryPart(name="anchor", host=self._per_machine(num_bytes), setting=setting)

    def _kept(self, name: str, home: str, num_bytes: int) -> MemoryPart:
        """A part that is on the host if ``trainer.offload`` names ``home``."""
        if home in self._offload:
            return MemoryPart(
                name=name, host=self._per_machine(num_bytes), setting=f"trainer.offload, which names {home!r},"
            )
        return MemoryPart(name=name, device=num_bytes, setting=self._remedy(home))

    def _remedy(self, home: str) -> str:
        """The setting to change for less of it on a device."""
        if home != "activations" and (self._config.trainer.device == "cpu" or self._shards < self._num_ranks):
            return self._more_ranks
        names = [name for name in self._offload if (name, home) != ("moments", "parameters")]
        offload = f"trainer.offload = {json.dumps([*names, home])}"
        return f"{self._more_ranks}, or {offload}" if home == "parameters" else offload

    def _checked(self) -> MemoryPart:
        """Root and layers gathered for a few tokens, without gradients."""
        forward = self._item * (self.sizes.root + 2 * self.sizes.layer)
        return MemoryPart(name="gathered for the check", device=forward if self._is_sharded else 0)

    def _read(self, item: int) -> MemoryPart:
        """Slices of the files being read, ``item`` bytes an element."""
        if self._is_read_whole:
            num_bytes = FLOAT32 * self.sizes.whole
            return MemoryPart(
                name="whole model, to convert",
                host=self._per_machine(num_bytes),
                setting="model.path, a directory that asyncrl has exported",
            )
        return MemoryPart(name="slice of a file", host=self._per_machine(item * self.sizes.slice))

    def _computing(self) -> list[MemoryPart]:
        """Gathered weights and activations, or a bucket of moments, at the fullest moment of a step."""
        item, received = self._item, self._item if self._shards > 1 else 0
        moments = self._passes(received) if self._is_sharded else [(0, self.pass_bytes.peak)]
        if self.reference is not None and "reference" in self._offload:
            moments.append((item * self.reference.root + (item + received) * self.reference.layer, 0))
        gathered, activations = max(moments, key=sum)
        if (update := self._bucket()) > gathered + activations:
            return [MemoryPart(name="bucket of moments", device=update)]
        setting = "" if item < FLOAT32 else 'model.dtype = "bfloat16"'
        from_host = 0  # a rank's rows of a layer, before they are gathered
        if "parameters" in self._offload and self._config.trainer.device != "cpu":
            from_host = (FLOAT32 + (item if item < FLOAT32 else 0)) * self.sizes.layer // self._shards
        return [
            MemoryPart(name="gathered", device=gathered, setting=setting),
            MemoryPart(name="rows from the host", device=from_host),
            MemoryPart(name="activations", device=activations, setting=self._less_activations(activations)),
        ]

    def _passes(self, received: int) -> list[tuple[int, int]]:
        """Gathered weights and activations at the moments of a pass over a sharded policy."""
        sizes, item = self.sizes, self._item
        head = item * sizes.root + received * sizes.layer
        layers = (
            item * (sizes.root + sizes.head_trained)
            + (item + received) * sizes.layer
            + (item + FLOAT32) * sizes.layer_trained
        )
        tied = 2 * sizes.head_trained if self._is_tied else 0
        embedding = item * (sizes.root + sizes.root_trained + tied) + FLOAT32 * sizes.layer_trained
        summed = max(item + FLOAT32, FLOAT32 + FLOAT32 // self._shards) * sizes.root_trained
        tower = embedding + (item + received) * sizes.layer + item * sizes.layer_trained
        moments = [(head, self.pass_bytes.head), (layers, self.pass_bytes.layers), (embedding, 0), (summed, 0)]
        return [*moments, (tower, self.pass_bytes.tower)] if self.pass_bytes.tower else moments

    def _bucket(self) -> int:
        if "moments" not in self._offload:
            return 0
        trained = [self.sizes, *filter(None, [self.critic])]
        largest = max(-(-sizes.parameter // self._shards) for sizes in trained)
        return min(max(BUCKET, MOMENTS * largest), max(MOMENTS * sizes.own_trained for sizes in trained))

    def _less_activations(self, num_bytes: int) -> str:
        """The setting to change for less of this many bytes of activations."""
        trainer = self._config.trainer
        if trainer.gradient_checkpointing is not True:
            return "trainer.gradient_checkpointing = true"
        is_host_other = trainer.device != "cpu" and "activations" not in self._offload
        if is_host_other and self.pass_bytes.inputs > num_bytes // 2:
            return self._remedy("activations")
        longest = self._config.data.max_prompt_tokens + self._config.longest_written("train")
        is_least = trainer.max_tokens_per_micro_batch * trainer.sequence_parallel == longest
        return "trainer.sequence_parallel" if is_least else "trainer.max_tokens_per_micro_batch"

    def _gathered(self, item: int) -> MemoryPart:
        """The tensor that is gathered; ``item`` is the bytes of an element."""
        items = self.sizes.parameter if self._views is not None else self.sizes.whole
        merging = 2 * FLOAT32 * items if self._adapters else 0
        return MemoryPart(name="gathered parameter", device=merging + items * item)

    def _staged(self) -> MemoryPart:
        """Two versions in the layout of a transfer, and a third for deltas; on the host of rank 0 alone."""
        delta = self._config.weights.delta
        num_bytes = (3 if delta else 2) * self.layout.num_bytes
        return MemoryPart(name="staged versions", host=num_bytes, setting="weights.delta = false" * delta)

    def _sending(self) -> list[MemoryPart]:
        """Two buckets on the device, through which a version is sent, and two for the base of deltas."""
        weights = self._config.weights
        if STAGED_ON[weights.backend] == "cpu":
            return []
        largest = max(bucket.num_bytes for bucket in self.layout.buckets)
        buckets = 4 if weights.delta else 2
        return [MemoryPart(name="buckets to send", device=buckets * largest, setting="weights.bucket_bytes")]

    @property
    def _own_trained(self) -> int:
        return self.sizes.own_trained + (self.critic.own_trained if self.critic else 0)

    @property
    def _more_ranks(self) -> str:
        if self._shards < self._num_ranks:
            return "trainer.shard_size = 0"
        return "trainer.ranks, more devices to shard over"

    def _per_machine(self, num_bytes: int) -> int:
        return self._config.trainer.ranks * num_bytes


def _critic_sizes(config: Config, base_path: Path, **gathering: Any) -> ModelSizes:
    path = Path(config.critic.path) if config.critic.path else base_path
    overrides = {} if config.critic.path else config.model.overrides
    critic = meta_model(path, AutoModelForTokenClassification, "critic.path", overrides, num_labels=1)
    return measure(critic, critic, [], **gathering)


def _is_read_by_slices(path: Path, views: list[View] | None) -> bool:
    """True if the files are in the form of checkpoints. Without files they are expected to be."""
    if views is None or not any((path / name).is_file() for name in (WHOLE, INDEX)):
        return views is not None
    shapes = check_weights(path, "model.path")
    return all(shapes.get(view.name) in (view.shape, ()) for view in views)
