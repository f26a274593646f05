"""The command `asyncrl`: parses options, then imports what the subcommand needs, so that `--help` stays fast."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from asyncrl.cli.data import data
from asyncrl.cli.episodes.command import episode
from asyncrl.cli.keys.command import keys
from asyncrl.cli.operate.commands import COMMANDS as OPERATE
from asyncrl.cli.plug_ins.command import advantage, loss, reward
from asyncrl.cli.recorded.commands import COMMANDS as READ
from asyncrl.cli.run_path import RUN_PATH
from asyncrl.cli.services.command import services
from asyncrl.cli.settings.command import config, set_option
from asyncrl.cli.start.command import example, init
from asyncrl.cli.terminal import json_option, report_errors, to_json
from asyncrl.cli.toy import tiny, toy
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError

PATH = click.Path(path_type=Path)
device_memory_option = click.option(
    "--device-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of each device, such as 80GB.  [default: that of the devices here]",
)
host_memory_option = click.option(
    "--host-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of the machine, such as 1TB.  [default: that of this machine]",
)
metrics_option = click.option(
    "--metrics",
    envvar="ASYNCRL_METRICS",
    metavar="[HOST:]PORT",
    help="Serve metrics and health from this port on, one for each process; 0 takes free ports.",
)
metrics_open_option = click.option(
    "--metrics-open",
    is_flag=True,
    envvar="ASYNCRL_METRICS_OPEN",
    help="Let other machines read --metrics, without a key.",
)
dashboard_option = click.option(
    "--dashboard", "is_shown", is_flag=True, help="Show the run in a browser while it lasts."
)
traces_option = click.option(
    "--traces", is_flag=True, help="Send spans of every trajectory to a collector of OpenTelemetry (OTEL_* variables)."
)


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="asyncrl")
def main() -> None:
    """
    Asynchronous reinforcement-learning post-training of language models.

    \b
    Start here:
      asyncrl example quickstart      # a run file, and the commands to try it
      asyncrl init --data FILE        # a run of your own
    """


@main.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@click.option("--dry-run", is_flag=True, help="Check everything and print what would run; start nothing.")
@device_memory_option
@host_memory_option
@click.option(
    "--scale", type=click.Choice(["tiny"]), help="Run the same options with a tiny random model and few rows, on a CPU."
)
@dashboard_option
@metrics_option
@metrics_open_option
@traces_option
@report_errors
def run(
    config_path: Path,
    overrides: tuple[str, ...],
    *,
    is_shown: bool,
    dry_run: bool,
    device_memory: str,
    host_memory: str,
    scale: str | None,
    metrics: str | None,
    metrics_open: bool,
    traces: bool,
) -> None:
    """
    Train a model as the run file CONFIG says.

    Starts the broker, the rollouts, the reward node and the trainer as processes of this machine, prints one line per
    optimizer step, and writes everything to a new run directory, by default below runs/. `asyncrl config explain` tells
    what a setting means.

    \b
    Example:
      asyncrl run conf/quickstart.toml --set run.steps=20
      asyncrl run conf/quickstart.toml --metrics 9400
      asyncrl run conf/recipes/gsm8k-qwen3-8b-grpo.toml --scale tiny --set run.steps=3
    """
    from asyncrl.cli.launch import run as launch
    from asyncrl.node.process.metrics_server import metrics_options
    from asyncrl.node.process.traces import require_opentelemetry

    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    if (device_memory or host_memory) and not dry_run:
        raise ConfigError(f"{_first(device_memory)} is for --dry-run, which checks that the run fits into it")
    config = tiny(config_path, overrides) if scale else load_config(config_path, overrides)
    if dry_run:
        launch.dry_run(config, device_memory, host_memory)
    else:
        launch.run(config, name=config_path.stem, is_shown=is_shown, metrics=serving, is_traced=traces)


@main.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--steps", type=click.IntRange(1), help="New total number of steps; must exceed the old one.")
@dashboard_option
@metrics_option
@metrics_open_option
@traces_option
@report_errors
def resume(
    run_directory: Path, *, steps: int | None, is_shown: bool, metrics: str | None, metrics_open: bool, traces: bool
) -> None:
    """
    Continue a run that stopped, or extend a finished one.

    RUN is a run directory. The run continues from its ledger and its newest checkpoint, with its own configuration.

    \b
    Example:
      asyncrl resume runs/quickstart --steps 200
    """
    from asyncrl.cli.launch.run import resume as resume_run
    from asyncrl.node.process.metrics_server import metrics_options
    from asyncrl.node.process.traces import require_opentelemetry

    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    resume_run(run_directory, steps, serving, is_shown=is_shown, is_traced=traces)


@main.command("eval")
@click.argument("model", metavar="MODEL")
@click.option("--data", multiple=True, metavar="FILE", help="Parquet or JSONL; repeatable.  [default: from --config]")
@click.option("-k", "--samples", type=int, help="Completions per prompt.  [default: from --config, or 1]")
@click.option("--reward", help="Reward function.  [default: from --config, or 'auto': by data source]")
@click.option("--temperature", type=float, help="0 is greedy.  [default: from --config; or 0 for -k 1, and 1 for more]")
@click.option("--top-p", type=float, help="Nucleus sampling.  [default: from --config, or 1]")
@click.option("--max-tokens", type=int, help="Most tokens of a completion.  [default: from --config, or at most 1024]")
@click.option("--max-prompts", type=int, help="Most prompts of each file, from its start.  [default: all]")
@click.option("--engine", type=click.Choice(["transformers", "vllm"]), help="[default: from --config, or transformers]")
@click.option("--seed", type=int, help="Sampling seed.  [default: from --config, or 0]")
@click.option("--config", "path", type=PATH, metavar="CONFIG", help="Other settings.  [default: those of MODEL's run]")
@set_option
@click.option("--out", type=PATH, metavar="FILE", help="Also write every completion to a parquet file.")
@json_option
@report_errors
def evaluate(out: Path | None, as_json: bool, **choices: Any) -> None:
    """
    Evaluate a model on held-out prompts, without training.

    MODEL is a Hugging Face model directory, a run directory, or a checkpoint in one; the run's settings and held-out
    prompts are then the defaults. Prints accuracy (avg@k, pass@k and maj@k with several completions per prompt), length
    and truncation for each data source. Completions without a verdict are in no mean, and counted as failed. Fit the
    engine to the machine with --set: rollout.slots, rollout.threads, model.dtype and others.

    \b
    Examples:
      asyncrl eval models/base --data held_out.parquet -k 8 --reward math
      asyncrl eval runs/quickstart
    """
    from asyncrl.node.machine.machine import require_train

    require_train()
    from asyncrl.cli.eval import eval_config
    from asyncrl.cli.eval import evaluate as evaluate_model
    from asyncrl.node.hub import with_local_copies

    config = with_local_copies(eval_config(**choices), partial(click.echo, err=True), model_setting="MODEL")
    evaluate_model(config, out=out, as_json=as_json)


@main.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--step", metavar="N|best", help="Checkpoint: its step, or the best evaluated.  [default: newest]")
@click.option("-o", "--out", type=PATH, metavar="DIR", required=True, help="Directory to create.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Cast weights.  [default: as trained]"
)
@click.option("--adapter", "is_adapter", is_flag=True, help="Export the LoRA adapter alone, for PEFT.")
@report_errors
def export(run_directory: Path, step: str | None, out: Path, dtype: Any, *, is_adapter: bool) -> None:
    """
    Export a checkpoint as a Hugging Face model directory.

    RUN is a run directory. The export holds weights, tokenizer and a model card, and loads in transformers and vLLM.
    With --adapter it is an adapter directory of the PEFT library, for the base model of the run.

    \b
    Examples:
      asyncrl export runs/quickstart --step best -o models/mine
      asyncrl export runs/quickstart --adapter -o adapters/mine
    """
    from asyncrl.node.machine.machine import require_train

    require_train()
    from asyncrl.cli.export import export_run

    click.echo(export_run(run_directory, out, step=step, dtype=dtype, is_adapter=is_adapter))


@main.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.argument("tracker", metavar="TRACKER")
@click.option("--once", is_flag=True, help="Send the existing records, then exit.")
@set_option
@report_errors
def track(run_directory: Path, tracker: str, overrides: tuple[str, ...], once: bool) -> None:
    """
    Send the metrics and events of a run to a tracker.

    RUN is a run directory; TRACKER is tensorboard, wandb, mlflow or file.py:name. Continues after the last record sent,
    and follows a running run to its end. `asyncrl run` starts this command for each tracker in trackers.use.

    \b
    Example:
      asyncrl track runs/quickstart tensorboard
    """
    from asyncrl.cli.track import track as track_run

    track_run(run_directory, tracker, overrides, once=once)


@main.command()
@click.argument("plan_path", metavar="PLAN", type=PATH)
@set_option
@json_option
@click.option("--picture", type=PATH, metavar="FILE", help="Also write a self-contained HTML page.")
@click.option("--search/--no-search", "searched", default=True, help="Search for the best split of the devices.")
@click.option("--memory", is_flag=True, help="Predict memory instead; PLAN is a run file.")
@device_memory_option
@host_memory_option
@report_errors
def plan(
    plan_path: Path,
    overrides: tuple[str, ...],
    *,
    as_json: bool,
    picture: Path | None,
    searched: bool,
    memory: bool,
    device_memory: str,
    host_memory: str,
) -> None:
    """
    Predict the speed of a cluster, or the memory of a run.

    PLAN is a TOML file with measured speeds, completion lengths and a schedule; conf/plan/ has one that explains every
    number. The broker's own rules run against simulated nodes in simulated time, and tell step time, idle
    shares and staleness. Speed-ups are relative to synchronous
    training that uses all devices for sampling and for training in turn.

    With --memory, PLAN is a run file, and the answer is the bytes on a device and on a host at every phase. Only the
    config.json of its model has to be there.

    \b
    Example:
      asyncrl plan conf/plan/verl-128.toml
      asyncrl plan --memory conf/quickstart.toml --device-memory 80GB
    """
    if memory:
        if picture or not searched:
            raise ConfigError("--picture and --no-search are not for --memory; remove them")
        _plan_memory(plan_path, overrides, device_memory, host_memory, as_json=as_json)
        return
    if device_memory or host_memory:
        raise ConfigError(f"{_first(device_memory)} is for --memory; add it, or remove both")
    from rich.console import Console

    from asyncrl.cli.plan import report_table
    from asyncrl.plan.html_page import write_page
    from asyncrl.plan.plan_file import load as load_plan
    from asyncrl.plan.report import make_report

    console, loaded = Console(stderr=True), load_plan(plan_path, overrides)
    if not console.is_terminal:
        click.echo(f"simulating{', and searching splits; --no-search is quicker' if searched else ''}", err=True)
    with console.status("simulating"):  # rich shows this on a terminal only.
        answer = make_report(loaded, searched=searched)
    click.echo(to_json(answer) if as_json else report_table(answer, plan_path.stem))
    if picture:
        write_page(answer, plan_path.stem, picture)
        click.echo(picture, err=True)


def _first(device_memory: str) -> str:
    """Name of the first of the two options that is given."""
    return "--device-memory" if device_memory else "--host-memory"


def _plan_memory(
    path: Path, overrides: tuple[str, ...], device_memory: str, host_memory: str, *, as_json: bool
) -> None:
    from asyncrl.node.hub import with_local_copies
    from asyncrl.node.machine.machine import require_train

    config = with_local_copies(load_config(path, overrides), partial(click.echo, err=True), has_weights=False)
    require_train()
    from asyncrl.cli.memory import memory_table
    from asyncrl.node.machine.memory import plan_memory, room_here

    room = room_here(config, device_memory, host_memory)
    answer = plan_memory(config, room)
    click.echo(to_json(answer) if as_json else memory_table(answer, path.stem))


@main.command()
@click.argument("config_path", metavar="[CONFIG]", type=PATH, required=False)
@click.option("--role", type=click.Choice(["broker", "reward", "trainer", "rollout"]), help="Check for this role only.")
@click.option("--npu", is_flag=True, help="Check only Ascend NPUs, thoroughly: send 64 MiB between two of them.")
@click.option("--cluster", "cluster_file", type=PATH, metavar="FILE", help="Check the machines that FILE names.")
@click.option("--probe", is_flag=True, hidden=True, help="Answer a question of --cluster from standard input.")
@set_option
@device_memory_option
@host_memory_option
@json_option
@report_errors
def doctor(
    config_path: Path | None,
    overrides: tuple[str, ...],
    *,
    role: str | None,
    npu: bool,
    cluster_file: Path | None,
    probe: bool,
    device_memory: str,
    host_memory: str,
    as_json: bool,
) -> None:
    """
    Check which roles this machine or a cluster can run.

    Checks installed packages, devices, and collectives between two processes. Prints one sentence for each problem.
    Exits with 1 if the machine can run no role, or not the one given by --role.

    CONFIG is a run file: then everything that this run needs is checked, and nothing else. Exits with 1 if something
    that it needs is missing.

    --cluster FILE runs asyncrl on each machine through a command such as ssh. It checks addresses, keys, versions,
    models, limits and disks, and sends data between the machines. Exits with 1 if a check fails.
    """
    import asyncio
    import os

    from rich.console import Console

    from asyncrl.cli.doctor import diagnose_cluster, show, to_plain
    from asyncrl.cli.launch.checks.fitness import diagnose_run
    from asyncrl.node.hub import with_local_copies
    from asyncrl.node.machine.doctor import diagnose, diagnose_npu

    if sum(map(bool, (config_path, npu, role, cluster_file, probe))) > 1:
        raise click.UsageError("CONFIG, --npu, --role and --cluster are different checks: give one of them")
    if config_path is None and (overrides or device_memory or host_memory):
        raise click.UsageError("--set, --device-memory and --host-memory are for CONFIG; add a run file")
    if probe:
        from asyncrl.node.machine.cluster.probe import answer

        answer(sys.stdin.buffer, sys.stdout.buffer)
        return
    with Console(stderr=True).status("checking"):  # rich shows this on a terminal only.
        if config_path:
            config = with_local_copies(load_config(config_path, overrides), partial(click.echo, err=True))
            diagnosis = asyncio.run(diagnose_run(config, device_memory, host_memory))
        elif cluster_file:
            diagnosis = diagnose_cluster(cluster_file)
        else:
            diagnosis = asyncio.run(diagnose_npu(os.environ) if npu else diagnose(os.environ, role or ""))
    if as_json:
        click.echo(to_json(to_plain(diagnosis)))
    else:
        show(Console(), diagnosis)
    sys.exit(0 if diagnosis.is_fit else 1)


@main.command("import-verl", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", metavar="SCRIPT|OPTION...", nargs=-1, required=True)
@click.option("-o", "--out", type=PATH, metavar="FILE", help="Run file to write.  [default: print it]")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Variable for SCRIPT; repeatable.")
@click.option("--rows", type=click.IntRange(1), help="Rows of the training data.  [default: counted, if it is here]")
@report_errors
def import_verl_command(
    arguments: tuple[str, ...], out: Path | None, environment: tuple[str, ...], rows: int | None
) -> None:
    """
    Translate a launch script of verl to a run file.

    SCRIPT is a shell script that starts a trainer of verl; arguments after it are passed to it and added to its
    options. Each OPTION is KEY=VALUE in Hydra's syntax, in place of a script. The script runs in a jail without files,
    network and programs, in which Python only records its arguments; its environment is empty but for HOME and --env.

    The run file has a comment where a meaning differs. The table on stderr accounts for every option. Exits with 1 if
    the run cannot work as translated: an option has no substitute, or something is missing.

    \b
    Example:
      asyncrl import-verl run_grpo.sh --env MODEL_PATH=models/base -o run.toml
      asyncrl import-verl algorithm.adv_estimator=grpo data.train_files=train.parquet ...
    """
    from asyncrl.cli.import_verl import import_verl

    import_verl(arguments, environment, out, rows)


for command in (*OPERATE, *READ):
    main.add_command(command)
main.add_command(advantage)
main.add_command(config)
main.add_command(data)
main.add_command(example)
main.add_command(init)
main.add_command(episode)
main.add_command(keys)
main.add_command(loss)
main.add_command(reward)
main.add_command(services)
main.add_command(toy)


if __name__ == "__main__":
    main()
