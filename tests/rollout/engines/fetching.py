"""A trainer's versions, stored at a spool and fetched by the node of an engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from asyncrl.engine import Engine, MultiProcessEngine
from asyncrl.messages.weights import Transfer
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors
from asyncrl.weights.exchange import Copies
from asyncrl.weights.stored.download import Downloader
from asyncrl.weights.stored.staged import StagedVersion
from asyncrl.weights.stored.upload import Uploader
from tests.weights.stored.small_spool import small_spool

ANCHOR_EVERY = 100


class Fetching:
    """Publishes weights as trainer and rollout actor do together."""

    def __init__(self, engine: Engine, copies: Copies, uploader: Uploader, downloader: Downloader) -> None:
        self._engine = engine
        self._copies = copies
        self._uploader = uploader
        self._downloader = downloader

    async def publish(self, model: PreTrainedModel, policy_version: int) -> None:
        """Return once the engine decodes with the model's weights."""
        with self._copies.write(policy_version) as staging:
            for name, tensor in checkpoint_tensors(model):
                staging.tensors[name].copy_(tensor)
        uploaded = await self._uploader.upload(policy_version)
        assert uploaded.problem == ""
        await self._downloader.transfer(Transfer(1, policy_version, members=[], keep=False, deadline_s=0.0))
        await self._engine.pause()
        await self._engine.swap(policy_version, self._downloader.weights())
        await self._engine.resume()


@asynccontextmanager
async def fetch(engine: Engine, model: PreTrainedModel, folder: Path, bucket_bytes: int) -> AsyncIterator[Fetching]:
    layout = Layout(checkpoint_specs(model, "float32"), bucket_bytes)
    async with small_spool(folder) as spool:
        copies = Copies(layout, torch.device("cpu"), keeps_base=False)
        uploader = Uploader(layout, copies, ANCHOR_EVERY, spool.connect)
        staged = StagedVersion(layout, is_shared=isinstance(engine, MultiProcessEngine))
        downloader = Downloader(staged, spool.connect)
        try:
            yield Fetching(engine, copies, uploader, downloader)
        finally:
            await downloader.aclose()
            await uploader.aclose()
