"""Commands that write the files of a first run, and that start or continue a run."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from asyncrl.cli.parts import RUN_PATH, report_errors
from asyncrl.cli.plan import device_memory_option, first_given, host_memory_option
from asyncrl.cli.settings import set_option
from asyncrl.cli.toy import tiny
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.terminal import command_line, echo
from asyncrl.workers.child import module_command

# ── before a first run ─────────────────────────────────────────────────────────────────────────
# `asyncrl example` and `asyncrl init`: the files that a first run needs.

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=".")
@click.option("--model", metavar="DIR", help="Model directory.  [default: the only one here]")
@click.option("--data", metavar="FILE", help="Parquet or JSONL to train on.  [default: the only one here]")
@click.option("--prompt-column", metavar="NAME", help="Column of the prompt.  [default: guessed]")
@click.option("--answer-column", metavar="NAME", help="Column of the reference answer.  [default: guessed]")
@click.option("--reward", metavar="FUNCTION", help="Reward: file.py:name or a built-in one.  [default: a stub]")
@report_errors
def init(
    folder: Path,
    model: str | None,
    data: str | None,
    *,
    prompt_column: str | None,
    answer_column: str | None,
    reward: str | None,
) -> None:
    """
    Write a run file for this machine, a model and a dataset.

    Looks for the model, the data, its columns, a held-out file beside it and the devices, and says what it found. The
    reward function is a stub, unless you name one or the data source has a built-in one; it is tried on a few rows.
    Without a held-out file, prompts of the data are held out. FOLDER gets run.toml and reward.py; files that exist are
    left alone.

    \b
    Example:
      asyncrl init --model models/base --data train.parquet --reward score.py
    """
    from asyncrl.cli.plug_ins import REWARDS, full_name
    from asyncrl.tools.init import write_files

    columns = {"prompt": prompt_column, "answer": answer_column}
    named = {kind: name for kind, name in columns.items() if name}
    write_files(folder, model, data, named, echo, own_reward=full_name(reward, REWARDS) if reward else "")


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--to", "folder", type=PATH, metavar="DIR", default=".", help="Folder to copy into.")
@report_errors
def example(name: str | None, folder: Path) -> None:
    """
    List the examples that come with asyncrl, or copy one.

    NAME is a run file, the folder of a service manager or a scheduler, a program, or docs. The files that it uses come
    with it, below conf/ and examples/. A file that is there already is left alone.

    \b
    Example:
      asyncrl example quickstart
      asyncrl example kubernetes --to deploy
    """
    from asyncrl.tools import examples

    if name is None:
        echo("\n".join(examples.listing()))
        return
    found = examples.find(name)
    for path, is_copied in examples.copy(found, folder).items():
        echo(path if is_copied else f"{path}, which is there already, was left alone")
    if commands := examples.commands(found):
        echo("next:")
        for command in commands:
            echo(f"  {command}")


# ── detached ──────────────────────────────────────────────────────────────────────────────────
# `asyncrl run --detach`: a run in a session of its own, which no terminal ends.
#
#     asyncrl run FILE --detach ─▶ asyncrl run FILE, in a new session ─ checks, run directory ─▶ "detached as ..."
#             └── waits, and ends with its code if it ends before that ◀── pipe ──────────────────────┘
#
# Until the run begins it prints to the same terminal, so that a mistake is told as by `asyncrl run`.

VARIABLE = "ASYNCRL_DETACHED"
"""Descriptor of the pipe on which the detached process says that its run has begun."""
BEGAN = b"began"

detach_option = click.option("--detach", is_flag=True, help="Let the run go on by itself; asyncrl attach shows it.")


def begin_apart(command: Sequence[str]) -> int:
    """
    Start a command that calls `let_go` in a session of its own; returns 0 once it has, or else its exit code.

    Ctrl-C before that ends it.
    """
    reader, writer = os.pipe()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[writer],
        env={**os.environ, VARIABLE: str(writer)},
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        try:
            return 0 if pipe.read() == BEGAN else process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def again() -> list[str]:
    """This command without ``--detach``."""
    return module_command("asyncrl", *(word for word in sys.argv[1:] if word != "--detach"))


def when_begun() -> Callable[[RunDirectory], None] | None:
    """Function for a run to call once it has begun, which leaves the terminal; None if this process stays there."""
    writer = os.environ.pop(VARIABLE, "")
    return (lambda directory: let_go(directory, int(writer))) if writer else None


def let_go(directory: RunDirectory, writer: int) -> None:
    """Say where the run is, and leave standard output and error to the log of its screen."""
    path = directory.path
    echo(
        f"detached as process {os.getpid()}; watch it: {command_line('asyncrl', 'attach', path)}, end it: "
        f"{command_line('asyncrl', 'stop', path)}"
    )
    sys.stdout.flush()
    with directory.screen.open("ab") as log, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # the console writes its lines there itself
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.write(writer, BEGAN)
    os.close(writer)


# ── a run ──────────────────────────────────────────────────────────────────────────────────────

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


@click.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@click.option(
    "--dry-run", is_flag=True, help="Check settings, data, model and memory, print what would run, start nothing."
)
@device_memory_option
@host_memory_option
@click.option(
    "--scale", type=click.Choice(["tiny"]), help="Run the same options with a tiny model and few rows, on a CPU."
)
@click.option("--resume", "is_resumed", is_flag=True, help="Go on with the newest run of this file, if there is one.")
@detach_option
@dashboard_option
@metrics_option
@metrics_open_option
@traces_option
@report_errors
def run(
    config_path: Path,
    overrides: tuple[str, ...],
    *,
    is_resumed: bool,
    detach: bool,
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
    optimizer step, and writes everything to a new run directory, by default below runs/. With --resume the same command
    goes on with that run, for schedulers that begin a job again. With --detach the run goes on by itself, and this
    command ends once it has begun. `asyncrl config explain` tells what a setting means.

    \b
    Example:
      asyncrl run conf/quickstart.toml --set run.steps=20
      asyncrl run conf/quickstart.toml --metrics 9400
      asyncrl run conf/recipes/gsm8k-qwen3-8b-grpo.toml \\
        --scale tiny --set run.steps=3
    """
    from asyncrl.runtime import launch
    from asyncrl.runtime.metrics_server import metrics_options, require_opentelemetry

    if detach and not dry_run:
        sys.exit(begin_apart(again()))
    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    if (device_memory or host_memory) and not dry_run:
        raise ConfigError(f"{first_given(device_memory)} is for --dry-run, which checks that the run fits into it")
    config = tiny(config_path, overrides) if scale else load_config(config_path, overrides)
    if dry_run:
        launch.dry_run(config, device_memory, host_memory)
        return
    began = when_begun()
    if is_resumed and (begun := launch.begun(config, config_path.stem)):
        launch.resume(begun, metrics=serving, is_shown=is_shown, is_traced=traces, owns_process=True, began=began)
    else:
        launch.run(
            config,
            name=config_path.stem,
            is_shown=is_shown,
            metrics=serving,
            is_traced=traces,
            owns_process=True,
            began=began,
        )


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--steps", type=click.IntRange(1), help="New total number of steps; must exceed the old one.")
@click.option(
    "--skip-step",
    "skip_steps",
    metavar="N",
    multiple=True,
    type=click.IntRange(1),
    help="Leave out the batch of step N, at which the trainer fails; may be repeated.",
)
@click.option(
    "--stop-when",
    metavar="GOAL",
    help="End the run once an evaluation has such a value, in place of run.stop_when; '' trains every step.",
)
@detach_option
@dashboard_option
@metrics_option
@metrics_open_option
@traces_option
@report_errors
def resume(
    run_directory: Path,
    *,
    steps: int | None,
    stop_when: str | None,
    skip_steps: tuple[int, ...],
    detach: bool,
    is_shown: bool,
    metrics: str | None,
    metrics_open: bool,
    traces: bool,
) -> None:
    """
    Continue a run that stopped, or extend a finished one.

    RUN is a run directory. The run continues from its ledger and its newest checkpoint, with its own configuration.

    \b
    Example:
      asyncrl resume runs/quickstart --steps 200
    """
    from asyncrl.runtime.launch import resume as resume_run
    from asyncrl.runtime.metrics_server import metrics_options, require_opentelemetry

    if detach:
        sys.exit(begin_apart(again()))
    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    resume_run(
        run_directory,
        steps,
        serving,
        skip_steps=skip_steps,
        stop_when=stop_when,
        is_shown=is_shown,
        is_traced=traces,
        owns_process=True,
        began=when_begun(),
    )


COMMANDS = (run, resume)
