"""The quickstart's base model and data, made if they are missing."""

import subprocess
import sys
from pathlib import Path

from asyncrl.config.run_file import load_config

VLLM_SIZES = ("--heads", "2", "--kv-heads", "1", "--head-dim", "32")
"""As conf/quickstart-vllm.toml says."""


def make_base(config: Path, overrides: list[str]) -> None:
    """Make the model and the data a quickstart's run file names: two minutes, once."""
    loaded = load_config(config, overrides)
    model = Path(loaded.model.path)
    if not (model / "config.json").exists():
        sizes = VLLM_SIZES if loaded.rollout.engine == "vllm" else ()
        toy("step-sums", model.parent, *sizes)


def toy(*arguments: object) -> None:
    """Run `asyncrl toy`, its output on standard error."""
    subprocess.run([sys.executable, "-m", "asyncrl", "toy", *map(str, arguments)], check=True, stdout=sys.stderr)
