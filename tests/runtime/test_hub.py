"""Names of the Hub become folders with a commit, from the cache first; a local path is never taken for a name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

from huggingface_hub.errors import LocalEntryNotFoundError

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.trainer import Lora, Trainer
from asyncrl.errors import ConfigError
from asyncrl.runtime.model_files import HubName, dataset_name, model_name, snapshot_name, with_local_copies

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def download(tmp_path: Path) -> Callable[..., str]:
    """The real function, with a cache of one model and one dataset, and no network."""
    from huggingface_hub import snapshot_download

    files = {
        "models--org--name": ("config.json", "model.safetensors"),
        "datasets--org--sums": (
            "data/train-0.parquet",
            "data/train-1.parquet",
            "data/test-0.parquet",
            "untrained.jsonl",
        ),
    }
    for repo, names in files.items():
        for name in names:
            path = tmp_path / "cache" / repo / "snapshots" / COMMIT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        refs = tmp_path / "cache" / repo / "refs"
        refs.mkdir()
        (refs / "main").write_text(COMMIT)

    def from_cache(*arguments: Any, **options: Any) -> str:
        if not options.get("local_files_only"):
            raise OSError("there is no network")
        return str(snapshot_download(*arguments, **options, cache_dir=tmp_path / "cache"))

    return from_cache


def config(model: str, train: str = "train.parquet", held_out: str = "") -> Config:
    return Config(model=Model(path=model), data=Data(train=train, held_out=held_out))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("hf://org/name@v1.0", HubName("org/name", "v1.0")),
        ("models/base", None),
        ("/data/base", None),
        ("./org/name", None),
        ("cache/step-sums/model", None),
    ],
)
def test_a_model_of_the_hub_is_told_from_a_path(path: str, name: HubName | None) -> None:
    assert model_name(path) == name


def test_a_local_folder_is_never_a_name(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    assert model_name("org/name") is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hf://datasets/org/sums:train@main", HubName("org/sums", "main", "train")),
        ("org/sums:test", HubName("org/sums", None, "test")),
        ("org/sums", None),
        ("data/train.parquet", None),
    ],
)
def test_a_dataset_of_the_hub_is_told_from_a_path(path: str, name: HubName | None) -> None:
    assert dataset_name(path) == name


def test_the_configuration_gets_the_folder_with_the_commit(download: Callable[..., str]) -> None:
    said: list[str] = []
    found = with_local_copies(
        config("org/name", "org/sums:train", "hf://datasets/org/sums:test"), said.append, download
    )
    assert found.model.path.endswith(f"models--org--name/snapshots/{COMMIT}")
    assert [Path(file).name for file in found.data.train_files] == ["train-0.parquet", "train-1.parquet"]
    assert [Path(file).name for file in found.data.held_out_files] == ["test-0.parquet"]
    assert said[0] == f"model.path org/name is commit {COMMIT}"


def test_an_adapter_is_fetched_without_the_rest_of_its_repository(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(*_: Any, allow_patterns: list[str], **__: Any) -> str:
        asked.extend(allow_patterns)
        (tmp_path / "adapter_model.safetensors").write_bytes(b"")
        return str(tmp_path)

    given = Config(
        model=Model(path="models/base"),
        data=Data(train="train.parquet"),
        trainer=Trainer(lora=Lora(rank=2, path="org/adapter")),
    )
    assert with_local_copies(given, lambda _: None, download).trainer.lora.path == str(tmp_path)
    assert set(asked) == {"adapter_config.json", "adapter_model.safetensors"}
    assert with_local_copies(given, lambda _: None, download, has_weights=False) == given


def test_the_folder_of_a_snapshot_tells_its_name_and_commit(download: Callable[..., str]) -> None:
    folder = with_local_copies(config("org/name"), lambda _: None, download).model.path
    assert snapshot_name(folder) == HubName("org/name", COMMIT)
    assert snapshot_name("/models/org--name") is None


def test_local_paths_stay_as_they_are(download: Callable[..., str]) -> None:
    given = config("models/base")
    assert with_local_copies(given, lambda _: None, download) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            config("org/other"),
            r"'org/other' is neither a local path.*OSError: there is no network.*hf download org/other",
        ),
        (config("m", "org/none:train"), "--repo-type dataset --local-dir datasets/none"),
        (config("hf://nonsense"), "is no name on the Hugging Face Hub"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(given: Config, said: str, download: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match=said):
        with_local_copies(given, lambda _: None, download)


def test_a_path_that_is_not_there_is_one_short_sentence_that_names_the_argument() -> None:
    def download(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known. " * 9)

    with pytest.raises(ConfigError) as refused:
        with_local_copies(config("out/best"), lambda _: None, download, model_setting="MODEL")
    assert str(refused.value) == (
        "MODEL 'out/best' is neither a local path nor in the cache, and the Hugging Face Hub cannot be reached; "
        "correct it, or copy the folder from a machine with a network: hf download out/best --local-dir models/best"
    )


def test_a_cached_model_without_weights_is_downloaded(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "whole").mkdir()

    def download(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        return str(tmp_path / ("part" if local_files_only else "whole"))

    assert with_local_copies(config("org/name"), lambda _: None, download).model.path == str(tmp_path / "whole")


def test_configuration_and_tokenizer_are_had_without_the_weights(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(*_: Any, allow_patterns: list[str], **__: Any) -> str:
        asked.extend(allow_patterns)
        (tmp_path / "config.json").write_text("{}")
        return str(tmp_path)

    found = with_local_copies(config("org/name"), lambda _: None, download, has_weights=False)
    assert found.model.path == str(tmp_path)
    assert "config.json" in asked
    assert "*.safetensors" not in asked


def test_no_code_and_no_pickle_is_asked_for(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(*_: Any, allow_patterns: list[str], **__: Any) -> str:
        asked.extend(allow_patterns)
        return str(tmp_path)

    with_local_copies(config("org/name"), lambda _: None, download)
    assert asked
    assert [pattern for pattern in asked if pattern.endswith((".py", ".bin", ".pt", ".pth", "*"))] == []


@pytest.mark.parametrize(
    ("files", "split", "found"),
    [
        (["default/train/0000.parquet", "default/test/0000.parquet"], "train", ["default/train/0000.parquet"]),
        (["data/train_sft-0.parquet", "data/test_sft-0.parquet"], "train_sft", ["data/train_sft-0.parquet"]),
        (["train.jsonl", "untrained.jsonl"], "train", ["train.jsonl"]),
        (["b.jsonl", "a.parquet"], "", ["a.parquet", "b.jsonl"]),
    ],
)
def test_files_of_a_split_are_found_in_the_cache(
    tmp_path: Path, files: list[str], split: str, found: list[str]
) -> None:
    snapshot = tmp_path / COMMIT
    for name in files:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).touch()

    def cached(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        assert local_files_only, "all is in the cache"
        return str(snapshot)

    given = config(str(tmp_path), f"hf://datasets/org/name{':' * bool(split)}{split}")
    resolved = with_local_copies(given, lambda _: None, cached)
    assert resolved.data.train_files == [str(snapshot / name) for name in found]
