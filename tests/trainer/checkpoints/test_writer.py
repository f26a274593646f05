"""What a checkpoint knows of tokens is what the base model knew, to the byte."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from asyncrl.config.model.directory import check_model
from asyncrl.config.sections.evaluation import Checkpoint
from asyncrl.errors import ConfigError, RunFailed
from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trainer import Commit, Evaluating, Stepped
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints import writer as module
from asyncrl.trainer.checkpoints.checkpoint import Manifest
from asyncrl.trainer.checkpoints.export import export
from asyncrl.trainer.checkpoints.writer import Best, CheckpointWriter, PromptFiles, Retention
from asyncrl.trainer.learner import Learner
from asyncrl.wire.memory import MemoryHub
from tests.trainer.checkpoints.writing import write


@pytest.fixture
def base(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A model whose family has a tokenizer class of its own, which would add tokens to these words."""
    path = tmp_path / "base"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=64, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def test_an_export_of_a_checkpoint_is_a_model_that_asyncrl_takes(base, config, tmp_path) -> None:
    check_model(str(base))
    learner = Learner(config(), base)
    folder = write(
        tmp_path / "checkpoints",
        step=1,
        policy_version=1,
        frontier={},
        snapshot=learner.snapshot(),
        tokenizer=PromptFiles(base),
    )
    export(folder, checkpoint.verify(folder), tmp_path / "out", card="")

    check_model(str(tmp_path / "out"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (base / name).read_bytes()


def test_links_of_the_hubs_cache_become_files(tmp_path) -> None:
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").symlink_to("../blob")
    (tmp_path / "saved").mkdir()

    files = PromptFiles(tmp_path / "base")
    (tmp_path / "blob").unlink()
    files.save_pretrained(tmp_path / "saved")

    assert not (tmp_path / "saved" / "tokenizer.json").is_symlink()
    assert (tmp_path / "saved" / "tokenizer.json").read_text() == "{}"


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch) -> None:
    def refused(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(ConfigError, match=r"cannot read .*/tokenizer\.json: Permission denied"):
        PromptFiles(tmp_path)


# ── test retention ────────────────────────────────────────────────────────────────────────────
# Folders with a manifest and nothing else: what they hold is not looked at.


def save(directory: Path, step: int) -> None:
    """A checkpoint whose version is its step."""
    folder = directory / f"step_{step:06d}"
    folder.mkdir()
    manifest = Manifest(step=step, policy_version=step, random_state=b"", files={})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def steps(directory: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step_")) for folder in directory.glob("step_*"))


def best(directory: Path) -> Best:
    return msgspec.json.decode((directory / BEST).read_bytes(), type=Best)


@pytest.fixture
def retention(tmp_path):
    return Retention(tmp_path, Checkpoint(every_steps=1, keep=2, keep_best=True))


def result(version: int, accuracy: float, **metrics: float) -> Evaluated:
    return Evaluated(version, accuracy, 8, metrics)


def grow(directory: Path, retention: Retention, *new: int) -> None:
    for step in new:
        save(directory, step)
        retention.prune()


def test_the_best_stays_however_many_follow(tmp_path, retention):
    for step, accuracy in ((1, 0.25), (2, 0.75), (3, 0.5), (4, 0.5), (5, 0.7)):
        grow(tmp_path, retention, step)
        retention.evaluated(result(step, accuracy))
        retention.prune()
    assert steps(tmp_path) == [2, 4, 5]
    assert best(tmp_path) == Best(step=2, policy_version=2, metric="accuracy", value=0.75)


def test_a_better_one_takes_its_place_and_an_equal_one_does_not(tmp_path, retention):
    grow(tmp_path, retention, 1)
    for step, accuracy in ((1, 0.5), (2, 0.5), (3, 0.75), (4, 0.1), (5, 0.1)):
        if step > 1:
            grow(tmp_path, retention, step)
        retention.evaluated(result(step, accuracy))
        with capture_logs() as said:
            retention.prune()
        assert bool(said) == (step in (1, 3)), "said once, when it changes"
    assert (best(tmp_path).step, steps(tmp_path)) == (3, [3, 4, 5])


def test_a_version_in_evaluation_is_kept_until_its_result(tmp_path, retention):
    retention.evaluated(result(0, 0.9))  # The base model, of which there is no checkpoint.
    retention.evaluating(1)
    grow(tmp_path, retention, 1, 2, 3, 4)
    assert steps(tmp_path) == [1, 3, 4]
    retention.evaluated(result(1, 0.3))
    retention.prune()
    assert best(tmp_path).step == 1
    retention.evaluated(result(3, 0.4))
    retention.prune()
    assert steps(tmp_path) == [3, 4]


def test_a_result_may_come_before_its_checkpoint_is_written(tmp_path, retention):
    retention.evaluated(result(1, 0.5))
    retention.prune()
    assert not (tmp_path / BEST).exists()
    grow(tmp_path, retention, 1)
    assert best(tmp_path).step == 1


def test_an_evaluation_in_which_nothing_was_answered_says_nothing(tmp_path, retention):
    retention.evaluated(Evaluated(1, 1.0, 0))
    retention.evaluated(result(2, float("nan")))
    grow(tmp_path, retention, 1, 2)
    assert not (tmp_path / BEST).exists()


def test_another_metric_may_tell(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep_best=True, best_metric="reward"))
    grow(tmp_path, retention, 1, 2)
    retention.evaluated(result(1, 0.9, reward=0.1))
    retention.evaluated(result(2, 0.1, reward=0.2))
    retention.prune()
    assert best(tmp_path) == Best(step=2, policy_version=2, metric="reward", value=0.2)


def test_an_unknown_metric_is_refused_with_the_existing_ones(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep_best=True, best_metric="acuracy"))
    with pytest.raises(ConfigError, match=r"best_metric is 'acuracy', .*; use one of accuracy, reward"):
        retention.evaluated(result(1, 0.9, reward=0.1))


def test_without_keep_best_only_the_newest_stay(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep=1))
    retention.evaluating(1)
    retention.evaluated(result(1, 0.9))
    grow(tmp_path, retention, 1, 2)
    assert steps(tmp_path) == [2]
    assert not (tmp_path / BEST).exists()


# ── test writer ───────────────────────────────────────────────────────────────────────────────
# The writer between a scripted broker and a folder of manifests without contents.

PEER = "trainer-0.1"


class Disk:
    """Stands in for the functions of `checkpoint` that write; each waits for `may_write`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_full = False
        self.frontiers: list[dict[str, int]] = []
        self.parts: list[str] = []
        monkeypatch.setattr(checkpoint, "begin", lambda _directory, _step: None)
        monkeypatch.setattr(checkpoint, "write_part", lambda _directory, _step, _snapshot: {"own": FileEntry(1, "")})
        monkeypatch.setattr(checkpoint, "finish", self.finish)

    def finish(
        self,
        directory: Path,
        *,
        step: int,
        policy_version: int,
        frontier: dict[str, int],
        parts: dict[str, FileEntry],
        **_: Any,
    ) -> Path:
        self.may_write.wait(10)
        self.parts = sorted(parts)
        if self.is_full:
            raise RunFailed("cannot write: No space left on device")
        self.frontiers.append(frontier)
        folder = directory / f"step_{step:06d}"
        folder.mkdir()
        manifest = Manifest(step=step, policy_version=policy_version, random_state=b"", files={})
        (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        return folder


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


async def files_of_others() -> dict[str, FileEntry]:
    return {"theirs": FileEntry(2, "")}


async def begin(writer: CheckpointWriter, tasks: asyncio.TaskGroup, step: int) -> None:
    snapshot: Any = None
    await writer.begin(step)
    writer.write(
        tasks,
        step=step,
        policy_version=step,
        stepped=[Stepped(step - 1, step - 1, {})],
        snapshot=snapshot,
        others=files_of_others,
    )


def play(directory: Path, script: Callable[..., Awaitable[None]], *, sender: Any = None, **settings: Any) -> None:
    """``script(writer, tasks, broker)``; no thread may be left behind."""

    async def run() -> None:
        broker = MemoryHub()
        tokenizer: Any = None
        link = broker.connect(PEER)
        config = Checkpoint(**settings)
        with CheckpointWriter(directory, config, tokenizer=tokenizer, link=link, sender=sender) as writer:
            async with asyncio.TaskGroup() as tasks:
                await script(writer, tasks, broker)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainer-checkpoint")]

    asyncio.run(run())


def test_the_broker_hears_of_a_checkpoint_once_it_is_whole(tmp_path, disk):
    async def script(writer, tasks, broker):
        disk.may_write.clear()
        await begin(writer, tasks, 4)
        await asyncio.sleep(0)
        assert list(tmp_path.iterdir()) == []
        disk.may_write.set()
        assert (await broker.receive())[1] == Commit(3, str(tmp_path / "step_000004"))
        assert (tmp_path / "step_000004").is_dir()
        assert disk.frontiers == [{"next_step": 4}]
        assert disk.parts == ["own", "theirs"]

    play(tmp_path, script)


def test_wait_idle_waits_for_the_checkpoint_in_progress(tmp_path, disk):
    async def script(writer, tasks, broker):
        await writer.wait_idle()
        disk.may_write.clear()
        await begin(writer, tasks, 1)
        waiting = asyncio.ensure_future(writer.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.may_write.set()
        await waiting
        assert (tmp_path / "step_000001").is_dir()

    play(tmp_path, script)


def test_all_but_the_newest_go(tmp_path, disk):
    async def script(writer, tasks, broker):
        for step in (1, 2, 3):
            await begin(writer, tasks, step)
            await writer.wait_idle()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]

    play(tmp_path, script, keep=2)


def test_the_best_is_named_as_soon_as_its_result_is_heard(tmp_path, disk):
    async def script(writer, tasks, broker):
        await begin(writer, tasks, 1)
        await writer.wait_idle()
        await writer.handle_evaluation(Evaluating(1))
        for step in (2, 3, 4):
            await begin(writer, tasks, step)
            await writer.wait_idle()
        await writer.handle_evaluation(Evaluated(1, 0.5, 8))
        assert b'"step": 1' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [1, 3, 4]
        await writer.handle_evaluation(Evaluated(3, 0.75, 8))
        assert b'"step": 3' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [3, 4], "the last result of a run comes after its last checkpoint"

    play(tmp_path, script, keep=2, keep_best=True)


def test_a_result_removes_nothing_before_this_process_has_written_a_checkpoint(tmp_path, disk):
    async def script(writer, tasks, broker):
        for step in (1, 2, 3):
            disk.finish(tmp_path, step=step, policy_version=step, frontier={}, parts={})
        await writer.handle_evaluation(Evaluated(3, 0.5, 8))
        assert b'"step": 3' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [1, 2, 3]

    play(tmp_path, script, keep=2, keep_best=True)


def test_a_disk_that_takes_no_checkpoint_fails_the_group(tmp_path, disk):
    async def script(writer, tasks, broker):
        disk.is_full = True
        await begin(writer, tasks, 1)
        await writer.wait_idle()

    with pytest.raises(ExceptionGroup) as failed:
        play(tmp_path, script)
    (cause,) = failed.value.exceptions
    assert isinstance(cause, RunFailed)


def test_a_metric_that_is_not_measured_is_a_mistake_in_the_configuration(tmp_path, disk):
    async def script(writer, tasks, broker):
        await writer.handle_evaluation(Evaluated(0, 0.5, 8))

    with pytest.raises(ExceptionGroup) as failed:
        play(tmp_path, script, keep_best=True, best_metric="pass@4")
    (cause,) = failed.value.exceptions
    assert isinstance(cause, ConfigError)


class Sender:
    """Stands in for `CheckpointSender`: each copy waits for `may_end`."""

    def __init__(self) -> None:
        self.num_begun = self.num_copied = 0
        self.may_end = asyncio.Event()

    async def send(self) -> None:
        self.num_begun += 1
        await self.may_end.wait()
        self.num_copied += 1


def test_the_broker_hears_of_a_checkpoint_once_its_machine_has_a_copy(tmp_path, disk):
    sender = Sender()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 4)
        while not sender.num_begun:
            await asyncio.sleep(0.001)
        receiving = asyncio.ensure_future(broker.receive())
        await asyncio.sleep(0)
        assert not receiving.done()
        sender.may_end.set()
        assert (await receiving)[1] == Commit(3, str(tmp_path / "step_000004"))
        assert sender.num_copied == 1

    play(tmp_path, script, sender=sender)


def test_a_copy_that_does_not_end_with_the_run_is_given_up_and_not_committed(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "LAST_COPY_S", 0.0)
    sender = Sender()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 4)
        while not sender.num_begun:
            await asyncio.sleep(0.001)
        writer.end_copies()
        await writer.wait_idle()
        assert (tmp_path / "step_000004").is_dir()
        receiving = asyncio.ensure_future(broker.receive())
        await asyncio.sleep(0)
        assert not receiving.done()
        receiving.cancel()

    play(tmp_path, script, sender=sender)
    assert sender.num_copied == 0


def test_the_name_of_the_best_is_copied_after_an_evaluation(tmp_path, disk):
    sender = Sender()
    sender.may_end.set()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 1)
        await writer.wait_idle()
        await writer.handle_evaluation(Evaluated(1, 0.5, 8))
        assert sender.num_copied == 2

    play(tmp_path, script, sender=sender, keep_best=True)
