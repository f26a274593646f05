"""
`asyncrl run`: check everything, make what must be made, then run every role as a child process.

`asyncrl resume` does the last of these with a run that stopped: its ledger, spool and checkpoints say where it was.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import uvloop
from msgspec.structs import replace
from rich.console import Console

from asyncrl.broker.report.step_report import Totals
from asyncrl.cli.launch.functions import check_functions
from asyncrl.cli.launch.screen import Screen
from asyncrl.cli.launch.supervisor import Supervisor
from asyncrl.config.run_file import load, to_toml
from asyncrl.config.sections import Config
from asyncrl.data.chat_template import check_template, read_template
from asyncrl.data.check import unusable
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, RunFailed
from asyncrl.node.machine.devices import Devices, apart, find, share
from asyncrl.observe.report.report import write_report
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.trackers.catalogue import check_trackers
from asyncrl.reward.routing import check_routes


def run(config: Config, config_path: Path, overrides: tuple[str, ...], *, dry_run: bool) -> None:
    """
    Run to the end, then write the report and say where everything is.

    Raises:
        ConfigError: Nothing was started, or a node found that the configuration cannot work.
        RunFailed, LinkError: The run ended early; the message is the cause.
    """
    console = Console()
    trainer, shares = _shares(config)
    check_trackers(config.trackers)
    check_functions(config)
    prepare_model(config, config_path, overrides, console, dry_run=dry_run)
    if not dry_run or all(Path(path).exists() for path in config.data.train_files):
        check_data(config, console)
    if dry_run:
        console.print(to_toml(config), highlight=False, markup=False)
        console.print(_plan(config, trainer, shares), highlight=False, markup=False)
        return
    directory = RunDirectory.create(Path(config.run.dir), config.run.name or config_path.stem)
    directory.write_config(to_toml(config))
    _carry_out(config, directory, trainer, shares, console)


def resume(path: Path, steps: int | None = None) -> None:
    """
    Go on with a run that stopped, to its end; or with one that is complete, to a later end.

    Args:
        path: Its directory.
        steps: Where it ends from now on; None is where it was to end.

    Raises:
        ConfigError: There is no run, it is complete, or it was to end later than ``steps``.
        RunFailed, LinkError: As `run`.
    """
    directory = RunDirectory(path)
    if (summary := directory.read_summary()) is not None and summary.status == "finished" and steps is None:
        raise ConfigError(
            f"{path} is complete ({summary.steps} steps): there is nothing to resume; to train it for longer: "
            f"asyncrl resume {path} --steps {2 * summary.steps}"
        )
    if steps is not None and directory.config.is_file():
        directory.write_config(to_toml(_longer(load(directory.config), steps)))
    directory = RunDirectory.reopen(path)
    directory.address.unlink(missing_ok=True)  # Of the broker that was: others may use its port by now.
    config = load(directory.config)
    check_trackers(config.trackers)
    _carry_out(config, directory, *_shares(config), Console())


def _longer(config: Config, steps: int) -> Config:
    """The same run, with a later end. Everything else a run is made of stays what it was."""
    if steps <= config.run.steps:
        raise ConfigError(
            f"--steps {steps}: expected more than the {config.run.steps} steps the run was made for; it can end later, "
            f"and not earlier"
        )
    return replace(config, run=replace(config.run, steps=steps))


def _shares(config: Config) -> tuple[Devices | None, list[Devices]]:
    """Devices of the trainer, None for the CPU, and of each rollout; ConfigError if there are too few."""
    wanted = config.rollout.device
    if config.trainer.device != "cpu" and wanted in ("auto", "cpu"):
        found = find(config.trainer.device, os.environ)
    else:
        found = find(wanted, os.environ)
    trainer, left = apart(found, config.trainer)
    if trainer is not None and wanted == "cpu":
        left = find("cpu", os.environ)
    return trainer, share(left, config.rollout, config.rollout.replicas)


def _carry_out(
    config: Config, directory: RunDirectory, trainer: Devices | None, shares: list[Devices], console: Console
) -> None:
    """Every role as a child process, to the end; then the report, and where everything is."""
    console.print(f"run {directory.path}  (logs in {directory.logs})", highlight=False, markup=False)
    failure: AsyncrlError | None = RunFailed("asyncrl run itself broke down")
    try:
        with Screen(console, config.run.steps) as screen:
            uvloop.run(_supervise(Supervisor(config, directory, screen, trainer, shares)))
        failure = None
    except AsyncrlError as error:
        failure = error
    finally:
        summary = _ensure_summary(config, directory, str(failure or ""), console)
    try:
        write_report([directory.path], directory.report)
    except (AsyncrlError, OSError) as error:  # It can be made later, and how the run ended is more to the point.
        console.print(f"no report: {error}", highlight=False, markup=False, soft_wrap=True)
    _say_where(console, directory, summary, may_go_on=not isinstance(failure, ConfigError))
    if failure:
        raise failure
    if summary.status == "failed":
        raise RunFailed(summary.cause)


async def _supervise(supervisor: Supervisor) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await supervisor.run(stopping)


def prepare_model(
    config: Config, config_path: Path, overrides: tuple[str, ...], console: Console, *, dry_run: bool
) -> None:
    """
    Make the model from scratch if the config says how and it is not there yet.

    In a process of its own: this one never loads torch.

    Raises:
        ConfigError: There is no model and no recipe; or it has the name of somebody else's, which a recipe would give
            to a toy.
        RunFailed: Making it failed.
    """
    path = Path(config.model.path)
    if (path / "config.json").exists():
        return
    if _is_hub_name(config.model.path):
        raise ConfigError(
            f"model.path {config.model.path!r} is not a directory here; if it is a model on the Hugging Face Hub, "
            f"download it first, hf download {config.model.path} --local-dir models/{path.name}, and give that"
            + (f"; for one that is made by [model.scratch], write ./{path}" if config.model.scratch.recipe else "")
        )
    if not config.model.scratch.recipe:
        raise ConfigError(
            f"model.path {config.model.path!r} is not a model directory (no config.json in it); "
            f"give one, or a [model.scratch] recipe"
        )
    if dry_run:
        console.print(f"would make {path} by the recipe {config.model.scratch.recipe!r}", highlight=False)
        return
    console.print(
        f"making the model {path} by the recipe {config.model.scratch.recipe!r}; done once, then kept",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    command = [sys.executable, "-m", "asyncrl", "make-model", str(config_path)]
    for override in overrides:
        command += ["--set", override]
    if code := subprocess.run(command, check=False).returncode:
        raise RunFailed(f"making the model {path} failed: exit code {code}")


def _is_hub_name(path: str) -> bool:
    """``owner/name``, and no directory of the owner's is here."""
    owner, *name = path.split("/")
    return len(name) == 1 and bool(owner.strip(".~")) and not Path(owner).is_dir()


def check_data(config: Config, console: Console) -> None:
    """
    Look at every row, and say how many will be left out.

    Raises:
        ConfigError: A row cannot be used, or is of a source that no reward is for; or the model's chat template does
            not go with these prompts or arguments.
    """
    streams = {"train": train_stream(config.data, config.run.seed)}
    if config.data.held_out_files:
        streams["held_out"] = held_out_stream(config.data, config.evaluation.max_prompts)
    if (model := Path(config.model.path)).is_dir():  # A dry run may be of a model that is yet to be made.
        has_chats = any(stream.summary.has_chats for stream in streams.values())
        check_template(read_template(model), config.data.chat_template_kwargs, has_chats=has_chats)
    for name, stream in streams.items():
        check_routes(config.reward, stream.summary.data_sources)
        if stream.summary.bad:
            told = "\n".join([f"data.{name}:", *unusable(stream.summary.bad)])
            console.print(told, highlight=False, markup=False, soft_wrap=True)


def _ensure_summary(config: Config, directory: RunDirectory, cause: str, console: Console) -> RunSummary:
    """The broker writes it; if it could not, this says at least why."""
    if (summary := directory.read_summary()) is not None:
        return summary
    try:
        lines = directory.read_metrics()
    except LedgerError:  # The cause, most likely.
        lines = []
    totals = Totals(lines)
    summary = RunSummary(
        name=directory.path.name,
        status="failed",
        cause=cause or "the broker left without a summary",
        seed=config.run.seed,
        steps=totals.steps,
        steps_planned=config.run.steps,
        versions=max((int(line["version"]) for line in lines), default=0),
        wall_s=max((line["time_s"] for line in lines), default=0.0),
        trained_tokens=totals.tokens,
        staleness_mean=totals.staleness_mean,
        staleness_max=totals.staleness_max,
        logprob_gap_mean=totals.logprob_gap_mean,
        logprob_gap_max=totals.logprob_gap_max,
    )
    try:
        directory.write_summary(summary)
    except RunFailed as error:
        console.print(f"no summary: {error}", highlight=False, markup=False, soft_wrap=True)
    return summary


def _say_where(console: Console, directory: RunDirectory, summary: RunSummary, *, may_go_on: bool) -> None:
    checkpoints = sorted(directory.checkpoints.glob("step_*"))
    accuracy = ""
    if summary.base_accuracy is not None and summary.held_out_accuracy is not None:
        accuracy = f", held-out accuracy {summary.base_accuracy:.1%} -> {summary.held_out_accuracy:.1%}"
    lines = [
        f"{summary.status}: {summary.steps} of {summary.steps_planned} steps in {summary.wall_s:.1f} s{accuracy}, "
        f"staleness {summary.staleness_mean:.2f} (at most {summary.staleness_max})",
        f"report      {directory.report if directory.report.exists() else 'none'}",
        f"samples     {directory.samples}",
        f"checkpoint  {checkpoints[-1] if checkpoints else 'none'}",
    ]
    if summary.status == "failed" and may_go_on:
        lines.append(f"resume      asyncrl resume {directory.path}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _plan(config: Config, trainer: Devices | None, shares: list[Devices]) -> str:
    steps, schedule = config.run.steps, config.schedule
    where = " | ".join(map(str, shares)) if shares[0].ids else "the CPU"
    ranks = f" of {config.trainer.ranks} ranks" if config.trainer.ranks > 1 else ""
    return (
        f"would start: 1 broker (with spool), {len(shares)} rollouts, 1 reward, 1 trainer{ranks}\n"
        f"rollouts sample by {config.rollout.engine} on {where}, the trainer computes on {trainer or 'the CPU'}\n"
        f"{steps} steps of {schedule.groups_per_step} groups of {schedule.group_size}; at most {schedule.window} "
        f"groups open; {steps * schedule.groups_per_step * schedule.group_size} trajectories"
    )
