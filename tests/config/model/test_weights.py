"""Weights against config.json, by the headers of safetensors files."""

from pathlib import Path

import msgspec
import pytest

from asyncrl.config.model.weights import check_weights, read_shapes, vocabulary
from asyncrl.errors import ConfigError
from tests.config.model.directories import shapes_of, write_model, write_safetensors

SHAPES = {"model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,), "scale": ()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    return tmp_path / "model.safetensors"


def test_names_and_shapes_are_read(file: Path) -> None:
    assert read_shapes(file) == SHAPES


def test_a_file_that_was_cut_off_is_refused_with_both_sizes(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])

    with pytest.raises(ConfigError) as refused:
        read_shapes(file)

    assert str(refused.value) == (
        f"{file} is damaged: expected {len(whole):,} bytes by its header, got {len(whole) - 7:,}; copy the model "
        f"directory again"
    )


@pytest.mark.parametrize(
    "contents",
    [b"", b"abc", bytes(100), b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"],
    ids=["empty", "shorter than its length", "zeros", "ones", "a pointer of git-lfs"],
)
def test_a_file_of_another_kind_is_refused(file: Path, contents: bytes) -> None:
    file.write_bytes(contents)
    with pytest.raises(ConfigError, match=r"the safetensors header of .* is not a JSON object: .*; copy the model"):
        read_shapes(file)


def test_a_header_that_claims_the_whole_memory_is_not_read(file: Path) -> None:
    file.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ConfigError, match=r"the safetensors header of .* is not a JSON object"):
        read_shapes(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none cannot be read: there is no such file"):
        read_shapes(tmp_path / "none")


def refusal(model: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        check_weights(model, "model.path")
    return str(refused.value).replace(str(model), "MODEL")


def test_a_whole_model_is_accepted_and_its_vocabulary_known(tmp_path: Path) -> None:
    shapes = check_weights(write_model(tmp_path / "model", vocabulary=22), "model.path")
    assert vocabulary(shapes) == 22


def test_another_number_of_layers_is_one_sentence(tmp_path: Path) -> None:
    fewer = write_model(tmp_path / "fewer", layers=2, num_hidden_layers=3)
    more = write_model(tmp_path / "more", layers=4, num_hidden_layers=3)

    assert refusal(fewer) == (
        "model.path=MODEL: config.json says 3 layers, but in the safetensors there are 2, without layer 2; use config "
        "and weights of one model"
    )
    assert refusal(more) == (
        "model.path=MODEL: config.json says 3 layers, but in the safetensors there are 4; use config and weights of "
        "one model"
    )


def test_layers_that_only_predict_further_tokens_are_not_counted(tmp_path: Path) -> None:
    check_weights(write_model(tmp_path / "m", layers=4, num_hidden_layers=3, num_nextn_predict_layers=1), "model.path")


def test_another_vocabulary_is_one_sentence(tmp_path: Path) -> None:
    assert refusal(write_model(tmp_path / "model", vocabulary=22, vocab_size=40)) == (
        "model.path=MODEL: config.json says vocab_size=40, but the weight 'model.embed_tokens.weight' has 22 rows; use "
        "config and weights of one model"
    )


def test_the_language_model_of_several_is_compared(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 2, "vocab_size": 8}
    model = write_model(tmp_path / "model", text_config=text, vocab_size=99, num_hidden_layers=99)
    shapes = shapes_of() | {f"visual.blocks.{layer}.weight": (4, 4) for layer in range(7)}
    write_safetensors(model / "model.safetensors", shapes)
    assert check_weights(model, "model.path") == shapes


def test_names_of_an_unknown_family_are_left_to_the_trainer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_safetensors(model / "model.safetensors", {"embedding": (3, 3)})
    assert vocabulary(check_weights(model, "model.path")) is None


def test_a_directory_without_weights_is_one_sentence(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert refusal(model) == (
        "model.path=MODEL has no weights: expected model.safetensors, or model.safetensors.index.json and the files "
        "that it names; other formats are not read"
    )


def test_a_config_that_is_no_json_is_one_sentence(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "config.json").write_text('{"model_type": ')
    assert refusal(model).startswith("MODEL/config.json is not a JSON object: ")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in two files."""
    model = write_model(tmp_path / "model")
    (model / "model.safetensors").unlink()
    names = shapes_of()
    index = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(names)}
    for part in sorted(set(index.values())):
        write_safetensors(model / part, {name: shape for name, shape in names.items() if index[name] == part})
    (model / "model.safetensors.index.json").write_bytes(msgspec.json.encode({"weight_map": index}))
    return model


def test_the_files_of_a_sharded_model_are_one_model(sharded: Path) -> None:
    assert check_weights(sharded, "model.path").keys() == shapes_of().keys()


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "part-1.safetensors").unlink()
    assert refusal(sharded) == (
        "model.path=MODEL lacks part-1.safetensors, which its model.safetensors.index.json names; copy the model "
        "directory again"
    )


def test_a_shard_without_one_of_its_weights_is_named(sharded: Path) -> None:
    write_safetensors(sharded / "part-1.safetensors", {"model.layers.0.mlp.weight": (4, 4)})
    assert "part-1.safetensors lacks 'model.norm.weight'" in refusal(sharded)


@pytest.mark.parametrize("name", ["../part-0.safetensors", "/etc/passwd", "", ".."])
def test_an_index_names_files_of_its_folder_alone(sharded: Path, name: str) -> None:
    write_safetensors(sharded.parent / "part-0.safetensors", shapes_of())
    (sharded / "model.safetensors.index.json").write_bytes(msgspec.json.encode({"weight_map": {"a": name}}))
    assert "leads out of the folder MODEL, to" in refusal(sharded)


def entry(start: int, stop: int, shape: tuple[object, ...] = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": (start, stop)}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"a": entry(0, 8), "b": entry(0, 8)}, "b begins at byte 0 of the values, expected 8, where the tensor before"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, "b begins at byte 4"),
        ({"a": entry(4, 12)}, "a begins at byte 4 of the values, expected 0"),
        ({"a": entry(0, 8), "b": entry(12, 20)}, "b begins at byte 12 of the values, expected 8"),
        ({"a": entry(0, 12)}, r"a has 12 bytes, expected 8 of F32 in the shape \[2\]"),
        ({"a": entry(8, 0)}, "a begins at byte 8"),
        ({"a": entry(0, 8, (2**62, 2**62))}, "a has 8 bytes, expected 85,"),
        ({"a": entry(0, 8, (-2,))}, r"a in the safetensors header of .* is not a JSON object: Expected `int` >= 0"),
        ({"a": entry(0, 8, (True,))}, "is not a JSON object: Expected `int`, got `bool`"),
        ({"a": entry(0, 8, (1,) * 99)}, "is not a JSON object: Expected `array` of length <= 16"),
        ({"a": entry(0, 8, dtype="I4")}, "a has the dtype I4, expected one of F4, "),
        ({"a": 3}, r"a in the safetensors header of .* is not a JSON object: Expected `object`"),
        ({"a": {}}, "missing required field"),
    ],
    ids=str,
)
def test_tensors_fill_their_file_one_after_the_other(file: Path, tensors: dict[str, object], sentence: str) -> None:
    header = msgspec.json.encode(tensors)
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ConfigError, match=sentence):
        read_shapes(file)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "hidden_size", "n_embd", "num_experts", "head_dim"])
def test_a_config_asks_for_no_more_than_the_files_hold(tmp_path: Path, key: str) -> None:
    model = write_model(tmp_path / "model", vision_config={key: 10**9})
    assert f"config.json says {key}=1,000,000,000, but the safetensors hold 4 tensors" in refusal(model)
