import errno
import resource
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.checkpoints import MANIFEST
from asyncrl.messages.trainer import DamagedCheckpoint
from asyncrl.trainer.checkpoints.checkpoint import (
    begin,
    complete,
    prune,
    read_manifest,
    restore_random_state,
    search,
    take,
    verify,
)
from asyncrl.trainer.checkpoints.snapshot import OPTIMIZER, TENSORS, Snapshot, open_tensors
from asyncrl.trainer.learner import Learner
from tests.trainer.checkpoints.writing import read_tensors, write

OPTIMIZER_FILE = "trainer/optimizer.safetensors"
MODEL = "model.safetensors"


@pytest.fixture
def learner(model_path, config, make_trajectories):
    learner = Learner(config(), model_path)
    learner.train(make_trajectories())
    return learner


@pytest.fixture
def save(tmp_path, learner, tokenizer):
    def save(step: int) -> Path:
        return write(
            tmp_path,
            step=step,
            policy_version=step + 1,
            frontier={"next_group": 16 * step},
            snapshot=learner.snapshot(),
            tokenizer=tokenizer,
        )

    return save


def test_a_disk_that_fails_while_tensors_are_written_is_named_and_nothing_is_left(tmp_path):
    def full(folder: Path) -> Snapshot:
        (folder / "half").write_bytes(b"?")
        raise OSError(errno.ENOSPC, "No space left on device")

    begin(tmp_path, 3)
    with pytest.raises(RunFailed, match=r"step_000003: No space left on device; free space"):
        take(tmp_path, 3, full)
    assert not list(tmp_path.iterdir())


def flip_last_byte(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def test_a_checkpoint_holds_everything_bit_for_bit(save, learner, model_path, config, make_trajectories):
    folder = save(60)
    manifest = verify(folder)

    assert folder.name == "step_000060"
    assert (manifest.step, manifest.policy_version, manifest.frontier) == (60, 61, {"next_group": 960})
    assert {MODEL, OPTIMIZER_FILE, "config.json", "tokenizer.json"} <= manifest.files.keys()
    state, saved = learner.snapshot().tensors[OPTIMIZER], read_tensors(folder, OPTIMIZER)
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in state)

    resumed = Learner(config(), folder)
    resumed.resume(1, {OPTIMIZER: saved})
    assert resumed.train(make_trajectories(seed=5)) == learner.train(make_trajectories(seed=5))
    assert all(torch.equal(weight, dict(resumed.named_weights())[name]) for name, weight in learner.named_weights())


def test_steps_taken_after_the_snapshot_do_not_change_what_is_written(tmp_path, learner, tokenizer, make_trajectories):
    snapshot = learner.snapshot()
    weights = {name: weight.clone() for name, weight in learner.named_weights()}
    moments = {name: moment.clone() for name, moment in snapshot.tensors[OPTIMIZER].items()}
    learner.train(make_trajectories(seed=5))
    torch.rand(1)

    folder = write(tmp_path, step=1, policy_version=1, frontier={}, snapshot=snapshot, tokenizer=tokenizer)

    saved = load_file(folder / MODEL)
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())
    assert not all(torch.equal(saved[name], weight) for name, weight in learner.named_weights())
    saved = read_tensors(folder, OPTIMIZER)
    assert saved.keys() == moments.keys()
    assert all(torch.equal(saved[name], moment) for name, moment in moments.items())
    assert read_manifest(folder).random_state == snapshot.random_state


def test_a_checkpoint_contains_further_learned_tensors_and_scalars(tmp_path, learner, tokenizer):
    base = learner.snapshot()
    snapshot = Snapshot(
        configs=base.configs,
        weights=base.weights,
        weight_parts=base.weight_parts,
        tensors={**base.tensors, "critic": {"score.weight": torch.arange(4.0)}, "critic_optimizer": {}},
        state={"kl_coef": 0.1},
        random_state=base.random_state,
    )
    folder = write(tmp_path, step=1, policy_version=1, frontier={}, snapshot=snapshot, tokenizer=tokenizer)
    manifest = verify(folder)
    assert manifest.state == {"kl_coef": 0.1}
    assert {"trainer/critic.safetensors", "trainer/critic_optimizer.safetensors"} <= manifest.files.keys()
    assert read_tensors(folder, "critic")["score.weight"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert read_tensors(folder, "critic_optimizer") == {}
    assert [path.name for path in folder.glob("*.safetensors")] == [MODEL], "engines load every one they see there"


def test_a_manifest_without_a_state_is_one_with_an_empty_state(save):
    path = save(1) / MANIFEST
    raw = msgspec.json.decode(path.read_bytes())
    del raw["state"]
    path.write_bytes(msgspec.json.encode(raw))
    assert verify(path.parent).state == {}


def test_the_random_state_comes_back(save):
    folder = save(1)
    expected = torch.rand(3)
    restore_random_state(read_manifest(folder))
    assert torch.equal(torch.rand(3), expected)


def test_nothing_in_a_checkpoint_is_a_pickle(save):
    suffixes = {path.suffix for path in save(1).rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".jinja"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda folder: (folder / MODEL).unlink(), f"{MODEL} is missing", id="a file is gone"),
        pytest.param(
            lambda folder: (folder / OPTIMIZER_FILE).write_bytes(b"short"),
            f"{OPTIMIZER_FILE}: expected .* got 5",
            id="cut short",
        ),
        pytest.param(
            lambda folder: flip_last_byte(folder / MODEL), f"{MODEL} differs .* expected sha256", id="one bit flipped"
        ),
        pytest.param(lambda folder: (folder / MANIFEST).unlink(), "incomplete", id="no manifest"),
        pytest.param(lambda folder: (folder / MANIFEST).write_bytes(b"{"), "damaged", id="half a manifest"),
    ],
)
def test_damage_is_named_with_the_file(save, damage, message):
    folder = save(1)
    damage(folder)
    with pytest.raises(LedgerError, match=message):
        verify(folder)


def test_a_later_format_is_not_guessed_at(save):
    path = save(1) / MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LedgerError, match="expected format 1, got 2"):
        read_manifest(path.parent)


def test_a_damaged_optimizer_is_a_ledger_error(save):
    folder = save(1)
    (folder / OPTIMIZER_FILE).write_bytes(b"\0" * 64)
    with (
        pytest.raises(LedgerError, match=OPTIMIZER_FILE),
        open_tensors(folder / TENSORS, read_manifest(folder).files),
    ):
        pass


def test_the_newest_intact_checkpoint_is_found_behind_damaged_ones(save, tmp_path):
    assert search(tmp_path).found is None
    save(9), save(10), save(11), save(1_000_000)
    assert search(tmp_path).found == (tmp_path / "step_1000000", read_manifest(tmp_path / "step_1000000"))
    (tmp_path / "step_1000000" / MANIFEST).unlink()
    flip_last_byte(tmp_path / "step_000011" / MODEL)
    with capture_logs() as said:
        found, damaged = search(tmp_path)
    assert found == search(tmp_path).found == (tmp_path / "step_000010", read_manifest(tmp_path / "step_000010"))
    assert [line["path"] for line in said] == [str(tmp_path / "step_1000000"), str(tmp_path / "step_000011")]
    assert "expected sha256" in said[1]["cause"]
    assert damaged == [DamagedCheckpoint(line["path"], line["cause"]) for line in said]


class Fails:
    """A tokenizer that cannot be written."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def save_pretrained(self, save_directory: Path, /) -> None:
        raise self._error


def write_with(folder: Path, learner: Learner, tokenizer: Fails) -> None:
    write(
        folder,
        step=2,
        policy_version=2,
        frontier={},
        snapshot=learner.snapshot(),
        tokenizer=tokenizer,
    )


def test_a_writer_that_died_leaves_no_checkpoint(save, tmp_path, learner):
    with pytest.raises(KeyboardInterrupt):
        write_with(tmp_path, learner, Fails(KeyboardInterrupt()))
    assert [path.name for path in tmp_path.iterdir()] == [".step_000002.partial"]
    assert search(tmp_path).found is None
    verify(save(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), id="as Python says it"),
        pytest.param(Exception("No space left on device (os error 28)"), id="as tokenizers says it"),
    ],
)
def test_a_full_disk_is_named_and_keeps_nothing_of_the_new_one(save, tmp_path, learner, error):
    save(1)
    with pytest.raises(RunFailed, match=r"cannot write .*step_000002: No space left on device.*; free space"):
        write_with(tmp_path, learner, Fails(error))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_weights_that_do_not_fit_on_the_disk_are_no_checkpoint(save, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*step_000001: .*File too large"):
            save(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(save):
    flip_last_byte(save(3) / MODEL)
    verify(save(3))


def test_prune_keeps_the_newest_complete_ones(save, tmp_path):
    for step in (1, 2, 3, 4, 5):
        save(step)
    (tmp_path / "step_000003" / MODEL).unlink()
    (tmp_path / "step_000005" / MANIFEST).unlink()
    (tmp_path / ".step_000006.partial").mkdir()

    removed = [path.name for path in prune(tmp_path, keep=2)]

    assert removed == ["step_000001", "step_000003"]
    kept = [".step_000006.partial", "step_000002", "step_000004", "step_000005"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept, "one may be being written"


def test_what_was_left_unfinished_goes_when_the_next_begins(save, tmp_path):
    (tmp_path / ".step_000006.partial").mkdir()
    save(8)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000008"]


def test_prune_keeps_spared_checkpoints(save, tmp_path):
    for step in (1, 2, 3):
        save(step)
    assert [path.name for path in prune(tmp_path, keep=1, spared=[tmp_path / "step_000001"])] == ["step_000002"]
    assert [folder.name for folder, _ in complete(tmp_path)] == ["step_000001", "step_000003"]


def test_prune_of_nothing_but_damage_removes_no_checkpoint(save, tmp_path):
    (save(1) / MANIFEST).unlink()
    assert prune(tmp_path, keep=1) == []


def test_saved_weights_are_the_published_ones(save, learner):
    saved = load_file(save(1) / MODEL)
    assert all(torch.equal(saved[name], weight) for name, weight in learner.named_weights())
