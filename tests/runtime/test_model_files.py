"""A node whose model is not that of the broker's machine leaves with the path, the machine and the file."""

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config, to_json
from asyncrl.config.model.directory import check_model
from asyncrl.config.model.tokenizer import describe, difference
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.files import FileDigest, ModelFiles
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolAddress, SpoolSet
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.model_files import (
    local_copies,
    model_files,
    models_elsewhere,
    require_data,
    require_same_models,
    with_copies,
)
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.rollout import run_rollout
from asyncrl.runtime.sessions import RunNode
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.checkpoints import FileServer
from asyncrl.spool.segments import Segments
from asyncrl.wire.handshake import Identity, identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from tests.config.model.directories import write_model
from tests.runtime.refusing import refused


def test_a_machine_tells_the_models_that_it_has_and_each_once(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    config = decode(
        {"model": {"path": model}, "critic": {"path": model}, "data": {"train": "t"}, "algorithm": {"advantage": "gae"}}
    )
    assert [found.path for found in model_files(config)] == [model]
    nowhere = replace(config, model=replace(config.model, path="/nowhere"), critic=replace(config.critic, path=""))
    assert model_files(nowhere) == []


def test_a_model_that_the_brokers_machine_lacks_is_named_and_one_of_the_hub_is_not(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    settings = {"data": {"train": "t"}, "critic": {"path": model}, "algorithm": {"advantage": "gae"}}
    (sentence,) = models_elsewhere(decode({"model": {"path": str(tmp_path / "modle")}, **settings}))
    assert sentence.startswith(f"model.path '{tmp_path}/modle' is not on this machine: nodes cannot fetch it")
    assert sentence.endswith(f"; did you mean {model}?")
    assert models_elsewhere(decode({"model": {"path": "hf://org/name"}, **settings})) == []


def test_a_file_of_prompts_that_is_missing_is_refused_and_a_dataset_of_the_hub_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    data = {"train": [str(tmp_path / "train.jsonl"), "org/name:train"], "held_out": str(tmp_path / "tests.jsonl")}
    with pytest.raises(DataError, match=r"no such dataset: .*tests\.jsonl \(data\.held_out\)"):
        require_data(decode({"model": {"path": "m"}, "data": data}))


def test_an_adapter_to_start_from_is_told_and_copied_as_a_model_is(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    lora = {"rank": 2, "path": str(tmp_path / "adapter")}
    config = decode({"model": {"path": "/nowhere"}, "data": {"train": "t"}, "trainer": {"lora": lora}})
    assert [found.path for found in model_files(config)] == [lora["path"]]

    assert with_copies(config, {str(lora["path"]): "/copy"}).trainer.lora.path == "/copy"


def test_a_model_that_is_not_on_this_machine_is_not_compared(tmp_path: Path) -> None:
    config = decode({"model": {"path": str(write_model(tmp_path / "model"))}, "data": {"train": "t"}})
    elsewhere = [replace(found, path="/nowhere") for found in model_files(config)]
    require_same_models(Welcome(1, "/run", to_json(config), SpoolSet(), 0.5, models=elsewhere))


@pytest.mark.slow("a real node loads a model")
def test_a_rollout_with_another_model_leaves_with_the_cause(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    config = decode({"model": {"path": str(model)}, "data": {"train": "t"}})
    brokers = model_files(config)
    (model / "config.json").write_text("{}")

    async def start(run: RunAddress, who: Identity) -> None:
        await run_rollout(RunNode(who, run, wait_s=10.0), StopEvent())

    error, reason = refused(config, "rollout", start, models=brokers)
    assert error == reason
    assert error.startswith(f"on {socket.gethostname()}: {model} is not the model of this run: config.json has 2 bytes")


def served(tmp_path: Path, *, may_fetch: bool = True, has_spool: bool = True) -> tuple[Path, Config]:
    """Ask for the models of a broker's machine that this one lacks. Returns the original, and the changed config."""
    theirs = write_model(tmp_path / "theirs")
    config = decode({"model": {"path": "/nowhere/model"}, "data": {"train": "t"}})
    models = [ModelFiles("/nowhere/model", describe(theirs))]

    class Files(FileServer):
        """Serves the original under the path that it has on the broker's machine."""

        def list(self, folder: str) -> Iterable[FileDigest]:
            return super().list(str(theirs)) if folder == "/nowhere/model" else []

    async def main() -> Config:
        hub, broker = ZmqHub("ipc://*", CODEC), MemoryHub()
        names = [file.name for file in models[0].files]
        files = Files({str(theirs): names}, tmp_path / "digests.json", tmp_path / "checkpoints")
        segments = Segments(tmp_path / "spool")
        actor = SpoolActor("spool", segments, hub, broker.connect("spool"), files=files)
        spool = asyncio.create_task(actor.run())
        spools = SpoolSet([SpoolAddress("spool", hub.address)] if has_spool else [])
        welcome = Welcome(1, "/run", to_json(config), spools, 0.5, models=models)
        try:
            async with asyncio.timeout(30):
                who = identity("rollout", "r")
                copies = await local_copies(welcome, RunAddress("ipc:///b"), who, may_fetch=may_fetch)
                return with_copies(config, copies)
        finally:
            spool.cancel()
            await asyncio.wait([spool])
            await hub.aclose()
            segments.close()

    return theirs, asyncio.run(main())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_model_that_this_machine_lacks_is_fetched_from_the_brokers_spool(tmp_path: Path) -> None:
    theirs, config = served(tmp_path)
    copy = Path(config.model.path)
    assert copy.is_relative_to(tmp_path / "cache")
    assert difference(copy, describe(theirs)) == ""
    check_model(str(copy))


def test_a_missing_model_is_named_if_it_may_not_or_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no /nowhere/model, and --fetch is never: copy the directory"):
        served(tmp_path / "never", may_fetch=False)
    with pytest.raises(ConfigError, match="there is no /nowhere/model, and the broker hosts no spool to fetch it from"):
        served(tmp_path / "none", has_spool=False)
