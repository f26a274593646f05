"""
Tokenizer, chat templates and picture processor of the base model, which each checkpoint has byte for byte.

A loaded tokenizer would write other files than it was read from: of another class, and with tokens that the model does
not know.
"""

from pathlib import Path

from asyncrl.config.model.prompt_files import prompt_files
from asyncrl.errors import ConfigError


class PromptFiles:
    """
    Copies of a model directory's `prompt_files`, in memory: the directory may be gone when a checkpoint is written.

    Raises `ConfigError` if one cannot be read.
    """

    def __init__(self, model: Path) -> None:
        self._files = {str(path.relative_to(model)): _read(path) for path in prompt_files(model)}

    def save_pretrained(self, save_directory: Path, /) -> None:
        """Write the files into a folder."""
        for name, content in self._files.items():
            path = save_directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
