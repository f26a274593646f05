"""A model directory, checked before anything starts and again where it is loaded: by its small files and headers."""

from pathlib import Path

from asyncrl.config.model.tokenizer import check_tokenizer
from asyncrl.config.model.weights import CONFIG, check_weights, vocabulary
from asyncrl.errors import ConfigError
from asyncrl.similar_path import did_you_mean


def check_model(path: str, *, setting: str = "model.path") -> None:
    """
    Raise `ConfigError` unless ``path`` is a directory with a model and its tokenizer; it may say how to get a model.

    Reads no tensor. ``setting`` is the key of the path, for messages.
    """
    model = require_directory(path, setting)
    check_tokenizer(model, setting, vocabulary(check_weights(model, setting)))


def require_directory(path: str, setting: str) -> Path:
    """The path of a model directory; raises `ConfigError` if there is no config.json in it."""
    model = Path(path)
    if _is_model(model):
        return model
    meant = did_you_mean(model, _is_model)
    if path == f"models/{model.name}":
        raise ConfigError(
            f"{setting} {path!r} is not a model directory (no {CONFIG} in it): download the model into it, "
            f"hf download OWNER/{model.name} --local-dir {path}, or give the directory of another{meant}"
        )
    if _is_hub_name(path):
        raise ConfigError(
            f"{setting} {path!r} is not a local directory; to use a model of the Hugging Face Hub, download it "
            f"first, hf download {path} --local-dir models/{model.name}, and give that directory"
        )
    remedy = ": give one, or make a toy model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`"
    raise ConfigError(f"{setting} {path!r} is not a model directory (no {CONFIG} in it){meant or remedy}")


def _is_model(path: Path) -> bool:
    return (path / CONFIG).exists()


def _is_hub_name(path: str) -> bool:
    """True for ``owner/name`` if there is no local directory ``owner``."""
    owner, *name = path.split("/")
    return len(name) == 1 and bool(owner.strip(".~")) and not Path(owner).is_dir()
