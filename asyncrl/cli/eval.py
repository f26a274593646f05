"""`asyncrl eval`: any model directory, examined on held-out prompts, without a run."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncrl.cli.tables import aligned
from asyncrl.config.run_file import SHORTHANDS, decode
from asyncrl.config.sections import Config
from asyncrl.config.toml import put, read, split_override
from asyncrl.data.chat_template import check_template, read_template
from asyncrl.data.check import unusable
from asyncrl.data.prompts import held_out_stream
from asyncrl.errors import ConfigError, RunFailed
from asyncrl.evaluation.answers import CompletionRow, write_completions
from asyncrl.evaluation.metrics import EvaluationMetrics, evaluation_metrics, metrics_by_source
from asyncrl.evaluation.offline import OfflineEvaluator, questions
from asyncrl.files.disk import needed
from asyncrl.messages import Prompt
from asyncrl.node.engine import load_engine
from asyncrl.node.process import configure_logging
from asyncrl.reward.routing import check_routes
from asyncrl.reward.workers.pool import WorkerPool

EVERYTHING = 1 << 62
"""Prompts of a file, unless told otherwise."""
SHOWN = 5
"""Reasons of failures that are listed; the rarer ones are counted."""


class Examined(Struct, frozen=True, kw_only=True):
    """What `asyncrl eval` found."""

    model: str
    data: list[str]
    samples: int
    """Completions of each prompt."""
    seed: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    tokens: int
    """Of all completions."""
    wall_s: float
    """Loading left out."""
    overall: EvaluationMetrics
    by_source: dict[str, EvaluationMetrics]


def evaluate(config: Config, *, out: Path | None, as_json: bool) -> None:
    """
    Examine the model, and print what came out.

    Raises:
        ConfigError: Model, data or verifier cannot be used.
        EngineDied: The engine's own process is gone.
        RunFailed: No completion at all has a verdict, or the disk does not take ``out``.
    """
    configure_logging("eval")
    rows, examined = examine(config, Console(stderr=True))
    for line in failures(rows):
        click.echo(line, err=True)
    if out:
        with needed(out):
            write_completions(out, rows)
    if not examined.overall.num_prompts:
        raise RunFailed(f"none of {len(rows)} completions has a verdict; the first because {rows[0].failure}")
    click.echo(msgspec.json.format(msgspec.json.encode(examined)).decode() if as_json else table(examined))


def eval_config(
    model: str,
    path: Path | None = None,
    *,
    data: Sequence[str] = (),
    samples: int | None = None,
    reward: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    max_prompts: int | None = None,
    engine: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """
    A run file with these in their places; without one, the defaults with them.

    Raises:
        ConfigError: It cannot be read, or some of it contradicts the rest.
    """
    plain = {"reward": {"function": "auto"}, "evaluation": {"max_tokens": 1024}}
    raw: dict[str, Any] = read(path, "config file") if path else plain
    options: dict[str, Any] = {
        "model.path": model,
        "evaluation.samples": samples,
        "evaluation.temperature": temperature,
        "evaluation.top_p": top_p,
        "evaluation.max_tokens": max_tokens,
        "evaluation.max_prompts": max_prompts or EVERYTHING,
        "rollout.engine": engine,
        "run.seed": seed,
    }
    if data:
        options |= {"data.train": list(data), "data.held_out": list(data)}  # Nothing is trained, but it must be a run.
    if reward:
        raw["reward"] = {key: value for key, value in raw.get("reward", {}).items() if key in ("workers", "timeout_s")}
        options["reward.function"] = reward
    for key, value in options.items():
        if value is not None:
            put(raw, key, value, where=f"option for {key}")
    for override in overrides:
        put(raw, *split_override(override, SHORTHANDS), where=f"--set {override}")
    evaluation = raw["evaluation"]
    if evaluation.get("samples", 1) != 1 and temperature is None and not evaluation.get("temperature"):
        evaluation["temperature"] = 1.0  # Greedy, all completions of a prompt would be one.
    if not raw.get("data", {}).get("held_out"):
        raise ConfigError("nothing to examine the model on: give --data FILE, or a --config with data.held_out")
    return decode(raw)


def examine(config: Config, console: Console) -> tuple[list[CompletionRow], Examined]:
    """
    Every row, and what all of them come to.

    Args:
        console: Has a bar while it goes on, if a person looks at it.

    Raises:
        ConfigError: Model, data or verifier cannot be used.
        EngineDied: The engine's own process is gone.
    """
    model = Path(config.model.path)
    if not (model / "config.json").is_file():
        raise ConfigError(f"MODEL '{model}' is not a model directory: there is no config.json in it")
    stream = held_out_stream(config.data, config.evaluation.max_prompts)
    summary = stream.summary
    check_template(read_template(model), config.data.chat_template_kwargs, has_chats=summary.has_chats)
    if summary.bad:
        console.print("\n".join(unusable(summary.bad)), highlight=False, markup=False, soft_wrap=True)
    prompts = [draw.prompt for draw in stream.since(0)]
    check_routes(config.reward, {prompt.data_source for prompt in prompts})
    rows, wall_s = uvloop.run(_examine(config, prompts, console))
    asked = questions(rows)
    samples, sampling = config.evaluation.samples, config.evaluation.sampling(config.sampling)
    return rows, Examined(
        model=config.model.path,
        data=config.data.held_out_files,
        samples=samples,
        seed=config.run.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        tokens=sum(row.num_tokens for row in rows),
        wall_s=round(wall_s, 3),
        overall=evaluation_metrics(asked, samples),
        by_source=metrics_by_source(asked, samples),
    )


async def _examine(config: Config, prompts: Sequence[Prompt], console: Console) -> tuple[list[CompletionRow], float]:
    columns = TextColumn("[bold]answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    async with WorkerPool(config.reward) as pool:
        engine = await asyncio.to_thread(load_engine, config)
        try:
            began_s = time.monotonic()
            with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
                task = bar.add_task("", total=len(prompts) * config.evaluation.samples)
                rows = await OfflineEvaluator(config, engine, pool).examine(prompts, partial(bar.advance, task))
            return rows, time.monotonic() - began_s
        finally:
            await engine.aclose()


def table(examined: Examined) -> str:
    """A line a data source, and one for all if there are several."""
    lines = dict(examined.by_source)
    if len(lines) > 1:
        lines["all"] = examined.overall
    names = [name for name in examined.overall.metrics if name not in ("length_mean", "truncated", "failed")]
    first = [] if examined.samples > 1 else ["accuracy"]
    head = ["data source", "prompts", *first, *names, "tokens", "truncated", "failed"]
    rows = [[source, *_cells(found, first, names)] for source, found in lines.items()]
    sampled = f"temperature {examined.temperature:g}, top-p {examined.top_p:g}" if examined.temperature else "greedy"
    how = f"{examined.samples} of each prompt, {sampled}, at most {examined.max_tokens} tokens, seed {examined.seed}"
    took = f"{examined.tokens:,} tokens in {examined.wall_s:.1f} s"
    return "\n".join([*aligned([head, *rows], right=range(1, len(head))), f"{how}; {took}"])


def failures(rows: Sequence[CompletionRow]) -> list[str]:
    """How many completions have no verdict, by reason, most frequent first."""
    reasons = Counter(row.failure for row in rows if row.failure).most_common()
    rest = sum(count for _, count in reasons[SHOWN:])
    lines = [f"{count} without a verdict: {' '.join(reason.split())}" for reason, count in reasons[:SHOWN]]
    return [*lines, *([f"{rest} without a verdict for {len(reasons) - SHOWN} other reasons"] if rest else [])]


def _cells(found: EvaluationMetrics, first: Sequence[str], names: Sequence[str]) -> list[str]:
    values = {"accuracy": found.accuracy} | found.metrics
    shares = [_cell(name, values.get(name)) for name in [*first, *names]]
    tail = [f"{values['length_mean']:.0f}", f"{values['truncated']:.1%}", f"{values['failed']:.0f}"]
    return [str(found.num_prompts), *shares, *tail]


def _cell(name: str, value: float | None) -> str:
    """What a data source has no number for stays open: no majority where its verifier names no answers."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.2f}" if name == "reward" else f"{value:.1%}"
