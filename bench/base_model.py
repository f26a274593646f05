"""Create the base model and data of the quickstart if they are missing."""

import subprocess
import sys
from pathlib import Path

from asyncrl.config.run_file import load_config

VLLM_SIZES = ("--heads", "2", "--kv-heads", "1", "--head-dim", "32")
"""Options from conf/quickstart-vllm.toml: vLLM has no CPU kernels for heads of size 16."""


def make_base(config: Path, overrides: list[str]) -> None:
    """Create the toy model and data named in a run file, which takes two minutes; do nothing if they exist."""
    loaded = load_config(config, overrides)
    model = Path(loaded.model.path)
    if not (model / "config.json").exists():
        sizes = VLLM_SIZES if loaded.rollout.engine == "vllm" else ()
        toy("hidden-sums" if loaded.environment.is_set else "step-sums", model.parent, *sizes)


def toy(*arguments: object) -> None:
    """Run `asyncrl toy` with its output on standard error."""
    subprocess.run([sys.executable, "-m", "asyncrl", "toy", *map(str, arguments)], check=True, stdout=sys.stderr)
