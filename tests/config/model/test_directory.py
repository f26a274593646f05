from pathlib import Path

import pytest

from asyncrl.config.model.directory import check_model
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_model, write_tokenizer


def test_a_whole_model_is_accepted(tmp_path: Path) -> None:
    check_model(str(write_model(tmp_path / "model")))


def test_the_tokenizer_is_compared_with_the_weights(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", vocabulary=22)
    write_tokenizer(model, 40)
    with pytest.raises(ConfigError, match="token ids up to 39, but the model knows 0 to 21"):
        check_model(str(model))


@pytest.mark.parametrize(
    ("path", "is_hub"),
    [("Qwen/Qwen3-0.6B", True), ("./model", False), ("model", False), ("a/b/c", False), ("/m", False)],
)
def test_owner_and_name_without_such_a_directory_is_a_name_on_the_hub(path: str, is_hub: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        check_model(path)
    assert ("hf download" in str(refused.value)) == is_hub


def test_a_mistyped_directory_is_answered_with_the_model_beside_it(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=rf"; did you mean {tmp_path}/model\?$"):
        check_model(str(tmp_path / "modle"))


def test_a_path_below_models_is_no_name_on_the_hub() -> None:
    with pytest.raises(ConfigError, match="hf download OWNER/Qwen3-8B --local-dir models/Qwen3-8B"):
        check_model("models/Qwen3-8B")
