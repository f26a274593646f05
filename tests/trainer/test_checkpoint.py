import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.trainer.checkpoint import (
    MANIFEST,
    OPTIMIZER,
    newest_sound,
    prune,
    read_manifest,
    read_optimizer,
    restore_random_state,
    verify,
    write,
)
from asyncrl.trainer.learner import Learner

MODEL = "model.safetensors"


@pytest.fixture
def learner(model_path, config, make_samples) -> Learner:
    learner = Learner(config(), model_path)
    learner.train(make_samples())
    return learner


@pytest.fixture
def save(tmp_path, learner, tokenizer):
    def save(step: int) -> Path:
        return write(
            tmp_path,
            step=step,
            policy_version=step + 1,
            frontier={"next_group": 16 * step},
            model=learner.policy.model,
            tokenizer=tokenizer,
            optimizer_state=learner.optimizer_state(),
        )

    return save


def flip_last_byte(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def test_a_checkpoint_holds_everything_bit_for_bit(save, learner, model_path, config, make_samples) -> None:
    folder = save(60)
    manifest = verify(folder)

    assert folder.name == "step_000060"
    assert (manifest.step, manifest.policy_version, manifest.frontier) == (60, 61, {"next_group": 960})
    assert {MODEL, OPTIMIZER, "config.json", "tokenizer.json"} <= manifest.files.keys()
    state, saved = learner.optimizer_state(), read_optimizer(folder)
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in state)

    resumed = Learner(config(), folder)
    resumed.resume(1, saved)
    assert resumed.train(make_samples(seed=5)) == learner.train(make_samples(seed=5))
    assert all(torch.equal(weight, dict(resumed.named_weights())[name]) for name, weight in learner.named_weights())


def test_the_random_state_comes_back(save) -> None:
    folder = save(1)
    expected = torch.rand(3)
    restore_random_state(read_manifest(folder))
    assert torch.equal(torch.rand(3), expected)


def test_nothing_in_a_checkpoint_is_a_pickle(save) -> None:
    suffixes = {path.suffix for path in save(1).iterdir()}
    assert suffixes <= {".json", ".safetensors", ".jinja"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda folder: (folder / MODEL).unlink(), f"{MODEL} is missing", id="a file is gone"),
        pytest.param(
            lambda folder: (folder / OPTIMIZER).write_bytes(b"short"), f"{OPTIMIZER}: expected .* got 5", id="cut short"
        ),
        pytest.param(
            lambda folder: flip_last_byte(folder / MODEL), f"{MODEL} differs .* expected sha256", id="one bit flipped"
        ),
        pytest.param(lambda folder: (folder / MANIFEST).unlink(), "incomplete", id="no manifest"),
        pytest.param(lambda folder: (folder / MANIFEST).write_bytes(b"{"), "damaged", id="half a manifest"),
    ],
)
def test_damage_is_named_with_the_file(save, damage, message) -> None:
    folder = save(1)
    damage(folder)
    with pytest.raises(LedgerError, match=message):
        verify(folder)


def test_a_later_format_is_not_guessed_at(save) -> None:
    path = save(1) / MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LedgerError, match="expected format 1, got 2"):
        read_manifest(path.parent)


def test_a_damaged_optimizer_is_a_ledger_error(save) -> None:
    folder = save(1)
    (folder / OPTIMIZER).write_bytes(b"\0" * 64)
    with pytest.raises(LedgerError, match=OPTIMIZER):
        read_optimizer(folder)


def test_the_newest_sound_checkpoint_is_found_behind_damaged_ones(save, tmp_path) -> None:
    assert newest_sound(tmp_path) is None
    save(9), save(10), save(11), save(1_000_000)
    assert newest_sound(tmp_path) == (tmp_path / "step_1000000", read_manifest(tmp_path / "step_1000000"))
    (tmp_path / "step_1000000" / MANIFEST).unlink()
    flip_last_byte(tmp_path / "step_000011" / MODEL)
    with capture_logs() as said:
        found = newest_sound(tmp_path)
    assert found == (tmp_path / "step_000010", read_manifest(tmp_path / "step_000010"))
    assert [line["path"] for line in said] == [str(tmp_path / "step_1000000"), str(tmp_path / "step_000011")]
    assert "expected sha256" in said[1]["cause"]


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
        model=learner.policy.model,
        tokenizer=tokenizer,
        optimizer_state={},
    )


def test_a_writer_that_died_leaves_no_checkpoint(save, tmp_path, learner) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_with(tmp_path, learner, Fails(KeyboardInterrupt()))
    assert [path.name for path in tmp_path.iterdir()] == [".step_000002.partial"]
    assert newest_sound(tmp_path) is None
    verify(save(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), id="as Python says it"),
        pytest.param(Exception("No space left on device (os error 28)"), id="as tokenizers says it"),
    ],
)
def test_a_full_disk_is_named_and_keeps_nothing_of_the_new_one(save, tmp_path, learner, error) -> None:
    save(1)
    with pytest.raises(RunFailed, match=r"cannot write .*step_000002: No space left on device.*; free space"):
        write_with(tmp_path, learner, Fails(error))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_weights_that_do_not_fit_on_the_disk_are_no_checkpoint(save, tmp_path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*step_000001: .*File too large"):
            save(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(save) -> None:
    flip_last_byte(save(3) / MODEL)
    verify(save(3))


def test_prune_keeps_the_newest_complete_ones(save, tmp_path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(step)
    (tmp_path / "step_000003" / MODEL).unlink()
    (tmp_path / "step_000005" / MANIFEST).unlink()
    (tmp_path / ".step_000006.partial").mkdir()

    removed = [path.name for path in prune(tmp_path, keep=2)]

    assert removed == ["step_000001", "step_000003", ".step_000006.partial"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000004", "step_000005"]


def test_prune_of_nothing_but_damage_removes_no_checkpoint(save, tmp_path) -> None:
    (save(1) / MANIFEST).unlink()
    assert prune(tmp_path, keep=1) == []


def test_saved_weights_are_the_published_ones(save, learner) -> None:
    saved = load_file(save(1) / MODEL)
    assert all(torch.equal(saved[name], weight) for name, weight in learner.named_weights())
