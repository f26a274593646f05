"""A learner starts from the base model in a new run, and from a checkpoint of its own run otherwise."""

from pathlib import Path

import pytest
import torch

from asyncrl.config.run_file import decode
from asyncrl.errors import LedgerError
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import RunNode
from asyncrl.runtime.trainer import load_learner, run_trainer
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.wire.handshake import Identity
from asyncrl.wire.run_address import RunAddress
from tests.runtime.refusing import refused
from tests.trainer.checkpoints.writing import write


def test_a_new_run_starts_from_the_base_model(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    config = decode({"model": {"path": str(toy / "model")}, "data": {"train": "t"}})
    loaded, tokenizer, start = load_learner(config, tmp_path / "checkpoints", lambda: SingleRank("cpu"))

    assert (start.step, start.policy_version, start.checkpoint) == (0, 0, "")
    assert "model.embed_tokens.weight" in {spec.name for spec in loaded.policy.specs()}
    (tmp_path / "saved").mkdir()
    tokenizer.save_pretrained(tmp_path / "saved")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "saved" / name).read_bytes() == (toy / "model" / name).read_bytes()


def test_a_checkpoint_of_another_run_is_not_resumed_from(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    config = decode({"model": {"path": str(toy / "model")}, "data": {"train": "t"}})
    fresh, tokenizer, _ = load_learner(config, tmp_path, lambda: SingleRank("cpu"))
    write(tmp_path, step=3, policy_version=3, frontier={}, run_id="a", snapshot=fresh.snapshot(), tokenizer=tokenizer)

    def resume(run_id: str) -> int:
        return load_learner(config, tmp_path, lambda: SingleRank("cpu"), run_id)[2].step

    assert (resume("a"), resume("")) == (3, 3)
    with pytest.raises(LedgerError, match=r"manifest\.json belongs to another run: expected run b, got a"):
        resume("b")


def test_a_damaged_checkpoint_is_passed_over_and_named(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    config = decode({"model": {"path": str(toy / "model")}, "data": {"train": "t"}})
    fresh, tokenizer, _ = load_learner(config, tmp_path, lambda: SingleRank("cpu"))
    older, newer = (
        write(tmp_path, step=step, policy_version=step, frontier={}, snapshot=fresh.snapshot(), tokenizer=tokenizer)
        for step in (3, 4)
    )
    (newer / "model.safetensors").write_bytes(b"damaged")

    _, _, start = load_learner(config, tmp_path, lambda: SingleRank("cpu"))

    assert (start.step, start.checkpoint) == (3, str(older))
    (damaged,) = start.damaged
    assert damaged.checkpoint == str(newer)
    assert damaged.cause.startswith(f"{newer / 'model.safetensors'}: expected ")
    (older / "manifest.json").unlink()
    _, _, start = load_learner(config, tmp_path, lambda: SingleRank("cpu"))
    assert (start.checkpoint, [one.checkpoint for one in start.damaged]) == ("", [str(newer), str(older)])


# ── test trainer ──────────────────────────────────────────────────────────────────────────────
# A trainer that cannot start reports the cause to the broker and to its caller.


async def start(run: RunAddress, who: Identity) -> None:
    await run_trainer(RunNode(who, run, wait_s=10.0), StopEvent())


def test_a_trainer_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu"}})
    error, reason = refused(config, "trainer", start)
    assert error == reason
    assert "npu devices need torch_npu" in error
