"""
Model in training: score tokens, and hand out weights to publish.

    config.model.dtype = "bfloat16"     weights, gradients and moments float32; computed with and published as bfloat16

Weights in training stay float32 for every dtype, because an update with a learning rate of 1e-6 is too small for
bfloat16. Those of a frozen model are stored as they are computed with.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from asyncrl.algo.logprobs import Scores, score_states
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import RouteShape
from asyncrl.trainer.checkpoints.snapshot import emptied
from asyncrl.trainer.model.architecture import policy_class
from asyncrl.trainer.model.host_memory import Checkpointing, HostActivations, enable_checkpointing
from asyncrl.trainer.model.loading import freeze, load, make_model, pack, packed_states
from asyncrl.trainer.model.lora import Adapters
from asyncrl.trainer.model.route_replay import ExpertLoad, RouteReplay
from asyncrl.trainer.model.vision import freeze_tower, picture_features
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.sharding import Computation, full_tensor
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.architecture import NONE
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import View, checkpoint_specs, checkpoint_views, renamed, saved_tensors
from asyncrl.weights.contents.token_ids import read_token_ids

CPU = torch.device("cpu")
TOLERANCE = 1e-4
"""Rounding of logits that are computed twice in the same way; far smaller than the effect of a further operation."""


class Policy:
    """
    Causal language model, which may read pictures, whose log-probs carry gradients.

    Args:
        overrides: ``model.overrides``.
        dtype: Dtype of what is computed with the weights, and of published weights.
        mesh: Ranks to shard over; None for this process alone. With several, every computation and every read of
            weights is collective.
        gradient_checkpointing: Activations to recompute; see `enable_checkpointing`.
        expert_parallel: Send tokens to the ranks that hold their experts, in place of gathering experts.
        freeze_vision: Train no parameter of the vision tower.
        lora: Train adapters and freeze the model; None, or a rank of 0, trains the model.
        is_frozen: Nothing is ever trained: parameters are stored in ``dtype``, and get no gradients.
        replay_routes: Send tokens to the experts of `MicroBatch.routes`, where there are some.
        offload: What is on the host between its uses: ``parameters`` with their gradients, or ``activations``.

    Raises:
        ConfigError: There is no complete causal model, or one that the trainer would compute wrongly.
    """

    def __init__(
        self,
        path: Path,
        *,
        overrides: Mapping[str, Any] = NONE,
        dtype: str = "float32",
        device: torch.device = CPU,
        mesh: DeviceMesh | None = None,
        gradient_checkpointing: Checkpointing = False,
        expert_parallel: bool = False,
        freeze_vision: bool = False,
        lora: Lora | None = None,
        is_frozen: bool = False,
        offload: Collection[str] = (),
        replay_routes: bool = False,
    ) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.device = device
        kind = policy_class(path, overrides)
        self.model: Any = make_model(path, kind, setting="model.path", overrides=overrides)
        self.processor = ImageProcessor.load(path)
        """Image processor of the model; None if it reads no pictures."""
        self.token_ids = read_token_ids(self.model, path, self.processor)
        """Ids that are scored are those that a sampler of this model can draw."""
        banned = self.token_ids.without_probability(self.model.get_input_embeddings().weight.shape[0])
        self._banned = torch.tensor(banned, device=device) if banned else None
        self._views = checkpoint_views(self.model, saved_tensors(self.model))
        self._specs = checkpoint_specs(self.model, dtype)
        if gradient_checkpointing:
            inputs = HostActivations(device) if "activations" in offload else None
            enable_checkpointing(self.model, f"model.path={path}", gradient_checkpointing, inputs=inputs)
        if freeze_vision:
            freeze_tower(self.model, f"model.path={path}")
        self._replay = RouteReplay(self.model, f"model.path={path}") if replay_routes else None
        self.route_shape: RouteShape | None = self._replay.shape if self._replay else None
        """Shape of the routes to replay; None without replay."""
        self.adapters = Adapters(self.model, lora) if lora and lora.rank else None
        """Adapters that are trained in place of the model, if there are any."""
        self.expert_load = ExpertLoad(self.model)
        """Tokens of each expert, for metrics."""
        self._computation = Computation(self.model, *filter(None, [self.adapters]))
        if is_frozen:
            freeze(self._computation, self.dtype)
        load(
            path,
            kind,
            self._computation,
            setting="model.path",
            device=device,
            mesh=mesh,
            dtype=self.dtype,
            on_host="parameters" in offload,
            expert_parallel=expert_parallel,
        )
        if self.adapters is not None:
            self.adapters.initialize()
        pack(self._computation, f"model.path={path}", self.dtype, device)
        self._head: nn.Linear = self.model.get_output_embeddings()
        with torch.no_grad():
            self._computation.run(self._refuse_other_heads, path)

    def score(
        self, batch: MicroBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> Scores:
        """Score the N completion tokens of ``batch``. Every parameter is in the graph, even with N = 0."""
        own = self._computation.run(
            self._score, batch, temperature=temperature, entropy=entropy, sum_pi_squared=sum_pi_squared
        )
        return own._replace(**{name: batch.gather(part) for name, part in own._asdict().items() if part is not None})

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by Hugging Face name, tied ones once under their first name. With LoRA, by PEFT's name."""
        if self.adapters is not None:
            return self.adapters.named()
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def memory(self) -> list[Tensor]:
        """Parameters and buffers, adapters included. Borrowed."""
        return [*self._computation.parameters(), *self._computation.buffers()]

    @property
    def configs(self) -> list[Any]:
        """Configurations of the model, each with a method ``save_pretrained``."""
        config = copy(self.model.config)
        config.architectures, config.dtype = [type(self.model).__name__], "float32"
        generation = [self.model.generation_config] if self.model.can_generate() else []
        return [config, *generation]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights to publish, in ``dtype`` of the model; see `saved_weights`."""
        return self._gathered(dict(self.model.named_parameters()), self.dtype)

    def saved_weights(self) -> Iterator[tuple[str, Tensor]]:
        """
        Weights of a checkpoint in float32, adapters merged: each is borrowed until the next one. Collective if sharded.

        One parameter at a time is gathered. The families of models that store rows in another order than a checkpoint
        need all of them at a time.
        """
        return self._gathered(saved_tensors(self.model), None)

    def saved_shapes(self) -> dict[str, Tensor]:
        """Each of the `saved_weights` on ``meta``, in their order."""
        return dict(self._as_saved(emptied(saved_tensors(self.model)).items()))

    def specs(self) -> list[TensorSpec]:
        """Names, shapes and dtypes of `named_weights`."""
        return list(self._specs)

    def _score(self, batch: MicroBatch, *, temperature: float, entropy: bool, sum_pi_squared: bool) -> Scores:
        pictures = picture_features(self.model, batch.pictures, self.device)
        if self._replay is not None:
            self._replay.routes = batch.routes  # until the next micro-batch: the backward pass may need them again
        return score_states(
            packed_states(self.model.base_model, batch, **pictures)[batch.positions],
            self._head.weight,
            self._head.bias,
            batch.token_ids,
            mask=batch.mask,
            temperature=temperature,
            dtype=self.dtype,
            entropy=entropy,
            sum_pi_squared=sum_pi_squared,
            banned=self._banned,
        )

    def _gathered(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        merged = ((name, tensor.detach()) for name, tensor in tensors.items())
        if (adapters := self.adapters) is not None:
            merged = ((name, adapters.merged(name, weight)) for name, weight in merged)
        return self._as_saved((name, full_tensor(tensor, dtype)) for name, tensor in merged)

    def _as_saved(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by their names in the model, as a checkpoint names and shapes them."""
        if self._views is None:
            yield from renamed(self.model, dict(tensors)).items()
            return
        views: dict[str, list[View]] = {}
        for view in self._views:
            views.setdefault(view.parameter, []).append(view)
        for name, tensor in tensors:
            yield from ((view.name, view.select(tensor)) for view in views[name])

    def _refuse_other_heads(self, path: Path) -> None:
        """Scoring applies the linear head only; models that also cap or scale their logits would be silently wrong."""
        vocab_size = int(self.model.config.get_text_config().vocab_size)
        head, ids = self._head, torch.arange(8, device=self.device)[None] % vocab_size
        expected = self.model(input_ids=ids, use_cache=False).logits
        got = head(self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
        if type(head) is not nn.Linear or not torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE):
            raise ConfigError(
                f"model.path={path}: {type(self.model).__name__} computes its logits with more than a linear head, "
                f"which the trainer cannot reproduce; use a model without logit scaling or soft-capping"
            )
