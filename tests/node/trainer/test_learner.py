"""A learner starts from the base model in a new run, and rank 0 chooses the checkpoint to resume from."""

from pathlib import Path

import pytest
import torch

from asyncrl.config.run_file import decode
from asyncrl.node.trainer import learner
from asyncrl.node.trainer.learner import load_learner
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.ranks.ranks import SingleRank


class SecondRank(SingleRank):
    """Rank 1 of two, whose first rank found a checkpoint."""

    rank = 1

    def all_gather(self, data: bytes) -> list[bytes]:
        return [b"step_000003", data]


def test_a_new_run_starts_from_the_base_model(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    config = decode({"model": {"path": str(toy / "model")}, "data": {"train": "t"}})
    directory = RunDirectory.create(tmp_path, "run")
    loaded, tokenizer, start = load_learner(config, directory, lambda: SingleRank("cpu"))

    assert (start.step, start.policy_version, start.checkpoint) == (0, 0, "")
    assert "model.embed_tokens.weight" in {spec.name for spec in loaded.specs()}
    tokenizer.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").exists()


def test_other_ranks_take_the_checkpoint_of_rank_0_without_reading_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Path) -> None:
        raise AssertionError("only rank 0 reads the checkpoints")

    monkeypatch.setattr(checkpoint, "newest_intact", read)
    assert learner._newest_checkpoint(tmp_path, SecondRank()) == tmp_path / "step_000003"
