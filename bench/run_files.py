"""
The run files that we ship, as benches take them: with other evaluations, other settings, and ``--smoke`` tiny.

Every bench of a run file reads it by `take`, and no other way: a setting that the file gets one day, and that depends
on what a bench changes, is then minded in one place.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from asyncrl.config.config import Config
from asyncrl.config.run_file import overridden, read_raw, to_toml

CONF = Path(__file__).parents[1] / "conf"
QUICKSTART = CONF / "quickstart.toml"

Evaluations = Mapping[str, int | bool]
"""Keys of ``[evaluation]`` that say when evaluations happen."""
NEVER: Evaluations = {"every_versions": 0, "at_start": False, "at_end": False}
AT_END: Evaluations = {"every_versions": 0, "at_start": False, "at_end": True}
BEST = ("keep_best", "best_metric")
"""Keys of ``[checkpoint]`` that need a checkpoint of every version that is evaluated."""

ENDLESS = ("run.steps=1000000", "trainer.lr=1e-6")
"""A run that continues until its bench ends it; the quickstart's learning rate is meant for 40 steps."""

TINY = (
    "run.steps=4",
    "schedule.groups_per_step=2",
    "schedule.group_size=2",
    "sampling.max_tokens=8",
    "rollout.replicas=1",
    "rollout.slots=4",
    "trainer.warmup_steps=1",
    "evaluation.max_prompts=4",
)
"""Sizes of ``--smoke``, which settings of the bench override."""
TINY_TIMES = ("evaluation.every_versions=2", "checkpoint.every_steps=2")

VLLM_SIZES = ("--heads", "2", "--kv-heads", "1", "--head-dim", "32")
"""Options from conf/quickstart-vllm.toml: vLLM has no CPU kernels for heads of size 16."""


def add_run_file(parser: argparse.ArgumentParser, shipped: Path = QUICKSTART) -> None:
    """Add the run file and ``--set`` to a command line."""
    parser.add_argument("config", nargs="?", type=Path, default=shipped, help="run file")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")


def take(options: argparse.Namespace, settings: Sequence[str] = (), evaluations: Evaluations | None = None) -> Config:
    """The run file of a command line as `changed`, whose base model is made if it is missing."""
    tiny: Sequence[str] = ()
    if options.smoke:
        tiny = (*TINY, *(TINY_TIMES if evaluations is None else ()), *_tiny_base(options.config))
    config = changed(options.config, [*tiny, *settings, *options.overrides], evaluations)
    make_base_of(config)
    return config


def changed(path: Path, settings: Sequence[str], evaluations: Evaluations | None) -> Config:
    """
    A run file with other settings, as ``a.b=value``, the last of which counts.

    Args:
        evaluations: When to evaluate in place of what the file says. Which checkpoint is best is then not kept.

    Raises:
        ConfigError: The file, or what has become of it, contradicts itself.
    """
    raw = read_raw(path)
    if evaluations is not None:
        raw["evaluation"] = raw.get("evaluation", {}) | evaluations
        for key in BEST:
            raw.get("checkpoint", {}).pop(key, None)
    return overridden(raw, settings)


def written(config: Config, folder: Path, name: str) -> Path:
    """Write a run file for a run whose directory is ``folder/name``."""
    path = folder / f"{name}.toml"
    path.write_text(to_toml(structs.replace(config, run=structs.replace(config.run, dir=str(folder), name=name))))
    return path


def make_base_of(config: Config) -> None:
    """Make the toy model and data that a config names, which takes minutes; nothing if they exist."""
    model = Path(config.model.path)
    if not (model / "config.json").exists():
        sizes = VLLM_SIZES if config.rollout.engine == "vllm" else ()
        toy("hidden-sums" if config.environment.is_set else "step-sums", model.parent, *sizes)


def toy(*arguments: object) -> None:
    """Run `asyncrl toy` with its output on standard error."""
    subprocess.run([sys.executable, "-m", "asyncrl", "toy", *map(str, arguments)], check=True, stdout=sys.stderr)


def _tiny_base(path: Path) -> list[str]:
    """Settings that name a model with random weights and its data, made in ``cache/smoke`` if they are missing."""
    task = "hidden-sums" if "environment" in read_raw(path) else "step-sums"
    folder = Path("cache", "smoke", task).absolute()
    if not (folder / "model").exists():
        _make_tiny(task, folder)
    paths = {"model.path": "model", "data.train": "train.parquet", "data.held_out": "held_out.parquet"}
    return [f"{key}={folder / name}" for key, name in paths.items()]


def _make_tiny(task: str, folder: Path) -> None:
    from asyncrl.tools.toy import hidden_sums, step_sums
    from asyncrl.tools.toy.models import PLAIN_CHAT, save_model, tokenizer_from_words
    from asyncrl.tools.toy.text_model import TextModelSizes, random_model

    folder.mkdir(parents=True, exist_ok=True)
    write: Callable[..., None] = hidden_sums.write if task == "hidden-sums" else step_sums.write
    write(folder / "train.parquet", "train", 0)
    write(folder / "held_out.parquet", "held_out", 0)
    if task == "hidden-sums":
        tokenizer = tokenizer_from_words(hidden_sums.WORDS, chat_template=PLAIN_CHAT)
    else:
        tokenizer = tokenizer_from_words(step_sums.WORDS)
    sizes = TextModelSizes(layers=1, hidden_size=32, intermediate_size=64, heads=2, kv_heads=1, head_dim=16)
    save_model(folder / "model", random_model(sizes, tokenizer, 0), tokenizer, lambda _: None)
