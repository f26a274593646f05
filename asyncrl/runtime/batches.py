"""
The trainer role for a training loop of your own.

    async with batches(address, model, tokenizer) as stream:
        async for batch in stream:                  trajectories with tokens, log-probs and rewards
            ...                                     loss, backward, optimizer step
            batch.metrics["loss"] = loss.item()     goes to metrics.jsonl and the trackers

While the body of the loop runs, rollouts sample the next batches. After it, the weights of ``model`` are published
every ``schedule.steps_per_publish`` steps, and saved every ``checkpoint.every_steps`` steps and at the end. A restarted
program continues with the weights of the newest checkpoint and the batches after it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.messages.token_ids import TokenIds
from asyncrl.runtime.local_address import local_address
from asyncrl.runtime.sessions import RunNode
from asyncrl.runtime.trainer import trainer_actor
from asyncrl.runtime.trainer_machines import DRAIN_S, checkpoint_folder, fetch_checkpoint
from asyncrl.trainer.actor import Start
from asyncrl.trainer.algorithm.mini_batch import TrainedPart
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.snapshot import Snapshot, host_copy
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, TrajectoryInfo
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.architecture import set_generation_config
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors, renamed, saved_tensors
from asyncrl.weights.contents.token_ids import find_token_ids
from asyncrl.wire.handshake import identity
from asyncrl.wire.run_address import find_run

log = get_logger()


@dataclass(eq=False)
class TrainingBatch:
    """The trajectories of one step, groups adjacent."""

    step: int
    """Steps done before this one."""
    trajectories: Sequence[TrainingTrajectory]
    """
    Trajectories of the step. Their ``turns`` and ``context_ids`` say what was read between the tokens to train: in
    episodes, and with ``schedule.on_straggler = "mask"`` in trajectories with tokens that are too old. Of an episode of
    several seats there is one for each ``seat`` that spoke: compare it with those of the same seat.
    """
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of your loop, to be reported with the step."""
    is_done: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


class Joining:
    """A run that is joined by ``async with``, and left at the end of its block."""

    def __init__(self, joined: AbstractAsyncContextManager["BatchStream"]) -> None:
        self._joined = joined

    async def __aenter__(self) -> "BatchStream":
        return await self._joined.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._joined.__aexit__(*error)

    def __aiter__(self) -> NoReturn:
        raise TypeError(
            "asyncrl.batches(...) has no batches before it has joined the run: write `async with asyncrl.batches(...) "
            "as stream:`, and in its block `async for batch in stream:`"
        )


def batches(
    address: str | os.PathLike[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str = "trainer",
    key: str | os.PathLike[str] | None = None,
    wait_s: float = 30.0,
) -> Joining:
    """
    Join a run as its trainer: ``async with asyncrl.batches(...) as stream``, a `BatchStream`.

    Args:
        address: Address of the broker, or a run directory of this machine.
        model: The policy, the same architecture as ``model.path`` of the run. Borrowed; a checkpoint of the run, if
            there is one, is loaded into it.
        tokenizer: Saved in checkpoints.
        name: Name of this node.
        key: File with the key of this node, or with the secret of the run. Not needed on the broker's machine by
            processes of its user.
        wait_s: Time limit for the broker to answer.

    Raises:
        LinkError: The broker does not answer, refuses this node, or restarted; start the program again then.
    """
    secret = Path(key) if key else None
    return Joining(_joined(os.fspath(address), model, tokenizer, name=name, key=secret, wait_s=wait_s))


@asynccontextmanager
async def _joined(
    address: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    key: Path | None,
    wait_s: float,
) -> AsyncIterator["BatchStream"]:
    run = await find_run(address, key, wait_s)
    node = RunNode(identity("trainer", name), run, wait_s=wait_s)
    session = await anext(node.sessions())  # The program ends with it.
    config, checkpoints = session.config, checkpoint_folder(session.welcome)
    if config.rollout.colocated:
        raise ConfigError(
            f"the run at {address} has rollout.colocated, but a program's model cannot leave its devices to rollouts; "
            f"use a run without it"
        )
    interface = await asyncio.to_thread(local_address, run.broker, config.weights.interface)
    await session.wait_for(fetch_checkpoint(session.welcome, run, session.who))
    start, specs = await session.load(partial(_restore, model, config.model.dtype, checkpoints))
    token_ids = await asyncio.to_thread(_token_ids, config, model, tokenizer)
    stream = BatchStream(config, model, token_ids, first_step=start.step)

    async def serve() -> None:
        async with trainer_actor(
            session,
            stream,
            specs,
            tokenizer,
            start,
            interface=interface,
            checkpoints=checkpoints,
            device=model.device,
        ) as actor:
            await session.serve(actor, drain=actor.drain, drain_s=DRAIN_S, limits=config.broker)

    serving = asyncio.create_task(serve(), name="trainer")
    serving.add_done_callback(stream.end)
    try:
        yield stream
    finally:
        stream.abandon()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class BatchStream:
    """An asynchronous iterator over the batches of a run; a `Trainable` whose steps are bodies of a loop."""

    def __init__(self, config: Config, model: PreTrainedModel, token_ids: TokenIds, first_step: int) -> None:
        self.config = config
        """The run's configuration."""
        self.lr = config.trainer.lr
        """Learning rate that the run has by now, for a loop whose optimizer follows `asyncrl set trainer.lr=...`."""
        self.num_computed = None
        """A program's own step may take as long as it likes."""
        self.token_ids = token_ids
        """Ids that the run's rollouts sample; `TokenIds.without_probability` has those to leave out of a softmax."""
        self._model = model
        self._step = first_step
        self._trained_part = TrainedPart(config)
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[TrainingBatch | None] = asyncio.Queue()
        self._current: TrainingBatch | None = None
        self._is_abandoned = False
        self._error: BaseException | None = None

    async def __aiter__(self) -> AsyncGenerator[TrainingBatch, None]:
        while (batch := await self._batches.get()) is not None:
            yield batch
            batch.is_done.set()
        if self._error is not None:
            raise self._error

    def end(self, serving: "asyncio.Task[None]") -> None:
        """End the iteration, because the trainer's task has ended."""
        self._error = None if serving.cancelled() else serving.exception()
        self._batches.put_nowait(None)

    def abandon(self) -> None:
        """Release the compute thread, which may wait for a batch that nobody will finish."""
        self._is_abandoned = True
        if self._current:
            self._current.is_done.set()

    # ── `Trainable`, on the compute thread ──────────────────────────────────────────────────

    def assign_ranks(self, infos: Sequence[TrajectoryInfo], /) -> list[int]:
        """Rank 0 for all: this process trains every trajectory."""
        return [0] * len(infos)

    def train(self, step: TrainingStep, policy_version: int | None, /) -> dict[str, float]:
        """Pass a batch to the loop, and wait until its body has ended. A step without trajectories is not passed on."""
        if not step.infos:
            self._step += 1
            return {"num_tokens": 0.0, "skipped": 1.0}
        num_tokens = sum(info.outcome.length for info in step.infos)
        step, _ = self._trained_part.of_step(step, self._step, SingleRank())
        batch = TrainingBatch(self._step, step.select(range(len(step.infos))))
        asyncio.run_coroutine_threadsafe(self._offer(batch), self._loop).result()
        self._step += 1
        rewards = [info.outcome.reward for info in step.infos]
        return {"num_tokens": float(num_tokens), "reward": sum(rewards) / len(rewards)} | batch.metrics

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors, by their names in a checkpoint."""
        return checkpoint_tensors(self._model)

    def snapshot(self, _folder: Path) -> Snapshot:
        """Copy of the model. The state of your optimizer is not in it."""
        weights = renamed(self._model, saved_tensors(self._model))
        return Snapshot(
            configs=[self._model.config, *filter(None, [getattr(self._model, "generation_config", None)])],
            weights={name: host_copy(weight) for name, weight in weights.items()},
            weight_parts=dict.fromkeys(weights, 0),
            tensors={},
            random_state=bytes(torch.get_rng_state().numpy()),
        )

    async def _offer(self, batch: TrainingBatch) -> None:
        self._current = batch
        if not self._is_abandoned:
            self._batches.put_nowait(batch)
            await batch.is_done.wait()


def _token_ids(config: Config, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
    """Token ids of the model, which gets the run's generation config, as far as this machine has its directory."""
    if not (path := Path(config.model.path)).is_dir():
        return find_token_ids(model, tokenizer, None)
    set_generation_config(model, path, config.model.overrides)
    return find_token_ids(model, tokenizer, ImageProcessor.load(path))


def _restore(model: PreTrainedModel, dtype: str, checkpoints: Path) -> tuple[Start, list[TensorSpec]]:
    """Load the newest intact checkpoint of the run, if there is one; with the model's tensors to publish."""
    specs = checkpoint_specs(model, dtype)
    found, damaged = checkpoint.search(checkpoints)
    if found is None:
        return Start(damaged=damaged), specs
    folder, manifest = found
    saved = type(model).from_pretrained(folder, local_files_only=True, dtype=model.dtype)
    model.load_state_dict(saved.state_dict())
    log.info("trainer.resumed", checkpoint=str(folder), steps=manifest.step, policy_version=manifest.policy_version)
    return Start(manifest.step, manifest.policy_version, str(folder), manifest.stepped, damaged), specs
