"""Commands that start a run, or continue one."""

from pathlib import Path

import click

from asyncrl.cli.parts import RUN_PATH, report_errors
from asyncrl.cli.plan import device_memory_option, first_given, host_memory_option
from asyncrl.cli.settings import set_option
from asyncrl.cli.toy import tiny
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError

PATH = click.Path(path_type=Path)
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
    from asyncrl.runtime import launch
    from asyncrl.runtime.metrics_server import metrics_options, require_opentelemetry

    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    if (device_memory or host_memory) and not dry_run:
        raise ConfigError(f"{first_given(device_memory)} is for --dry-run, which checks that the run fits into it")
    config = tiny(config_path, overrides) if scale else load_config(config_path, overrides)
    if dry_run:
        launch.dry_run(config, device_memory, host_memory)
    else:
        launch.run(
            config, name=config_path.stem, is_shown=is_shown, metrics=serving, is_traced=traces, owns_process=True
        )


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--steps", type=click.IntRange(1), help="New total number of steps; must exceed the old one.")
@click.option(
    "--skip-step",
    "skip_steps",
    metavar="N",
    multiple=True,
    type=click.IntRange(0),
    help="Leave out the batch of step N, counted from 0, at which the trainer fails; may be repeated.",
)
@dashboard_option
@metrics_option
@metrics_open_option
@traces_option
@report_errors
def resume(
    run_directory: Path,
    *,
    steps: int | None,
    skip_steps: tuple[int, ...],
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

    if traces:
        require_opentelemetry()
    serving = metrics_options(metrics, is_open=metrics_open)
    resume_run(
        run_directory,
        steps,
        serving,
        skip_steps=skip_steps,
        is_shown=is_shown,
        is_traced=traces,
        owns_process=True,
    )


COMMANDS = (run, resume)
