"""`asyncrl export` refuses what it cannot write before it reads gigabytes. The command itself is in test_main.py."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.tools import export as models
from asyncrl.tools.export import export_run
from asyncrl.trainer.checkpoints.checkpoint import Manifest


def test_an_existing_directory_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists and is never overwritten"):
        export_run(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('[model]\npath = "m"\n', r"trained the model itself \(trainer\.lora\.rank = 0\); export it without --adapter"),
        ("", r"has no readable config\.toml, which has the scale of the adapter"),
    ],
)
def test_a_run_without_an_adapter_has_none_to_export(tmp_path: Path, config: str, sentence: str) -> None:
    (tmp_path / "config.toml").write_text(config)
    with pytest.raises(ConfigError, match=sentence):
        export_run(tmp_path, tmp_path / "out", is_adapter=True)


def test_an_adapter_names_its_base_model_on_the_hub_and_the_scale_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "/cache/models--org--name/snapshots/0123abc"
    (tmp_path / "config.toml").write_text(f'[model]\npath = "{base}"\n[trainer.lora]\nrank = 4\nalpha = 6.0\n')
    folder = tmp_path / "step_000001"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    manifest = Manifest(step=1, policy_version=1, random_state=b"", files={})
    given: dict[str, Any] = {}

    def write(*paths: Any, **options: Any) -> None:
        given.update(options)
        paths[2].mkdir()

    monkeypatch.setattr(models, "find_checkpoint", lambda *_: (folder, manifest))
    monkeypatch.setattr(models, "export_adapter", write)
    export_run(tmp_path, tmp_path / "out", is_adapter=True)
    assert (given["base"], given["revision"], given["lora"]) == ("org/name", "0123abc", Lora(rank=4, alpha=6.0))
    assert 'base_model: "org/name"' in given["card"]


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        export_run(tmp_path / "none", tmp_path / "out")
