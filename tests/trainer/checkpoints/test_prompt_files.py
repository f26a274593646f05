"""What a checkpoint knows of tokens is what the base model knew, to the byte."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from asyncrl.config.model.directory import check_model
from asyncrl.errors import ConfigError
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.export import export
from asyncrl.trainer.checkpoints.prompt_files import PromptFiles
from asyncrl.trainer.learner import Learner
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
