"""Create the base model and data of a shipped run file if they are missing."""

from pathlib import Path

from run_files import make_base_of

from asyncrl.config.run_file import load_config


def make_base(config: Path, overrides: list[str]) -> None:
    """Create the toy model and data named in a run file, which takes two minutes; do nothing if they exist."""
    make_base_of(load_config(config, overrides))
