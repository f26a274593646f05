from pathlib import Path

import pytest

from asyncrl.config.model.tokenizer import has_vocabulary, prompt_files

TAKEN = [
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
    "preprocessor_config.json",
]
LEFT = ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "modeling.py"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in (*TAKEN, *LEFT):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_weights_configuration_and_code_are_not_among_them(model: Path) -> None:
    assert {str(path.relative_to(model)) for path in prompt_files(model)} == set(TAKEN)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt", "tekken.json", "qwen.tiktoken"])
def test_a_tokenizer_has_one_of_several_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").touch()
    assert not has_vocabulary(tmp_path)
    (tmp_path / name).touch()
    assert has_vocabulary(tmp_path)


def test_a_folder_or_a_broken_link_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    (tmp_path / "vocab.json").symlink_to("gone")
    assert not has_vocabulary(tmp_path)
    assert not list(prompt_files(tmp_path))
