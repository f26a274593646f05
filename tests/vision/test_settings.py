"""Settings of models that read pictures, as published and as saved by transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2VLImageProcessorPil

from asyncrl.errors import ConfigError
from asyncrl.vision.settings import CLIP_MEAN, Processing, read_settings
from tests.conftest import make_model


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_text_model_has_none(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert read_settings(tmp_path) is None


def test_ids_and_sizes_are_read(vision_model: Path) -> None:
    config, processing = read_settings(vision_model) or pytest.fail("no settings")
    assert config.image_token_id == json.loads((vision_model / "config.json").read_text())["image_token_id"]
    assert (processing.patch_size, processing.merge_size, processing.limits) == (4, 2, (64, 2304))


def test_defaults_are_those_of_transformers() -> None:
    theirs, ours = Qwen2VLImageProcessorPil(), Processing()
    assert ours.limits == (theirs.size["shortest_edge"], theirs.size["longest_edge"])
    assert list(CLIP_MEAN) == list(theirs.image_mean)
    assert list(ours.image_std) == list(theirs.image_std)
    assert (ours.resample, ours.rescale_factor) == (theirs.resample, theirs.rescale_factor)


def test_older_names_of_the_limits_go_first(qwen3_vl: Path) -> None:
    edit(qwen3_vl / "preprocessor_config.json", min_pixels=256, max_pixels=1024)
    _, processing = read_settings(qwen3_vl) or pytest.fail("no settings")
    assert processing.limits == (256, 1024)


def test_the_oldest_names_of_the_limits_are_read(qwen3_vl: Path) -> None:
    edit(qwen3_vl / "preprocessor_config.json", size={"min_pixels": 256, "max_pixels": 1024})
    _, processing = read_settings(qwen3_vl) or pytest.fail("no settings")
    assert processing.limits == (256, 1024)


def test_settings_nested_by_newer_versions_go_first(qwen3_vl: Path) -> None:
    fields = json.loads((qwen3_vl / "preprocessor_config.json").read_text())
    nested = {"image_processor": fields | {"size": {"shortest_edge": 64, "longest_edge": 640}, "min_pixels": None}}
    (qwen3_vl / "processor_config.json").write_text(json.dumps(nested))
    _, processing = read_settings(qwen3_vl) or pytest.fail("no settings")
    assert processing.limits == (64, 640)


def test_a_file_saved_by_transformers_is_read(qwen3_vl: Path) -> None:
    (qwen3_vl / "preprocessor_config.json").unlink()
    Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=640).save_pretrained(qwen3_vl)
    _, processing = read_settings(qwen3_vl) or pytest.fail("no settings")
    assert processing == Processing(patch_size=4, size=processing.size)
    assert processing.limits == (64, 640)


def test_missing_settings_are_refused(qwen3_vl: Path) -> None:
    (qwen3_vl / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"neither preprocessor_config\.json nor processor_config\.json"):
        read_settings(qwen3_vl)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "names the image processor 'CLIPImageProcessor'"),
        ({"do_resize": False}, "has do_resize = false, which is not supported"),
        ({"patch_size": 14}, r"patches of \(14, 2, 2\).*but the model in config.json reads \(4, 2, 2\)"),
        ({"size": {"shortest_edge": 99, "longest_edge": 9}}, "limits of 99 to 9 pixels"),
        ({"size": {"height": 8, "width": 8}}, "unknown field `height`"),
        ({"resample": 9}, "resample 9: expected"),
        ({"image_mean": [0.5]}, "has an invalid setting for pictures"),
    ],
)
def test_settings_that_are_not_supported_are_refused(qwen3_vl: Path, changes: dict[str, Any], reason: str) -> None:
    edit(qwen3_vl / "preprocessor_config.json", **changes)
    with pytest.raises(ConfigError, match=reason):
        read_settings(qwen3_vl)


def test_a_damaged_file_is_refused(qwen3_vl: Path) -> None:
    (qwen3_vl / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"preprocessor_config.json is not a JSON object"):
        read_settings(qwen3_vl)
