"""`asyncrl`: run, look, prepare. Parses and hands over; every message is one sentence, and the exit code tells."""

import sys
from pathlib import Path
from typing import Any

import click

from asyncrl.cli.data import data
from asyncrl.cli.sentence import one_sentence
from asyncrl.config.run_file import explain, load

PATH = click.Path(path_type=Path)
set_option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value.")
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(context_settings={"show_default": True})
@click.version_option(package_name="asyncrl")
def main() -> None:
    """Asynchronous reinforcement-learning post-training of language models."""


@main.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@click.option("--dry-run", is_flag=True, help="Check everything, print what would run, start nothing.")
@one_sentence
def run(config_path: Path, overrides: tuple[str, ...], dry_run: bool) -> None:
    """Run every role on this machine, as child processes."""
    from asyncrl.cli.launch.run import run as run_all

    run_all(load(config_path, overrides), config_path, overrides, dry_run=dry_run)


@main.command()
@click.argument("run_directory", metavar="RUN", type=PATH)
@click.option("--steps", type=click.IntRange(1), help="Where it ends now: later than it was to end.")
@one_sentence
def resume(run_directory: Path, steps: int | None) -> None:
    """Go on with a run that was killed, failed or is to be longer, from its ledger and its newest checkpoint."""
    from asyncrl.cli.launch.run import resume as resume_run

    resume_run(run_directory, steps)


@main.command()
@click.argument("run_or_address", metavar="RUN|ADDRESS")
@click.argument("node", metavar="NODE")
@click.option("--wait", "wait_s", type=float, default=60.0, help="Seconds to wait until it has left.")
@one_sentence
def drain(run_or_address: str, node: str, wait_s: float) -> None:
    """Make a rollout or reward node leave a run that goes on; others go on with its unfinished tokens."""
    import asyncio

    from asyncrl.cli.drain import broker_of
    from asyncrl.cli.drain import drain as drain_node

    asyncio.run(drain_node(broker_of(run_or_address), node, wait_s))
    click.echo(f"{node} has left")


@main.command("make-model")
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@one_sentence
def make_model(config_path: Path, overrides: tuple[str, ...]) -> None:
    """Make the model of [model.scratch], with its data; `asyncrl run` does so if it is missing."""
    from transformers.utils.logging import disable_progress_bar

    from asyncrl.toy.scratch import make

    disable_progress_bar()  # our own lines tell how it goes
    config = load(config_path, overrides)
    make(
        config.model.scratch,
        Path(config.model.path),
        train_path=Path(config.data.train_files[0]),
        held_out_path=Path(next(iter(config.data.held_out_files), "")),
        threads=config.trainer.threads,
        report=click.echo,
    )


@main.command()
@click.argument("runs", metavar="RUN...", type=PATH, nargs=-1, required=True)
@click.option("-o", "--out", type=PATH, help="Where to write it. [default: report.html of the first run]")
@one_sentence
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """One self-contained HTML page of curves; several runs side by side."""
    from asyncrl.observe.report.report import write_report
    from asyncrl.observe.run_directory import RunDirectory

    out = out or RunDirectory(runs[0]).report
    write_report(runs, out)
    click.echo(out)


@main.command("eval")
@click.argument("model", metavar="MODEL")
@click.option("--data", multiple=True, metavar="FILE", help="Parquet or JSONL; again for more.  [default: of --config]")
@click.option("-k", "--samples", type=int, help="Completions of each prompt.  [default: of --config, or 1]")
@click.option("--reward", help="What judges them.  [default: of --config, or 'auto': by data source]")
@click.option("--temperature", type=float, help="[default: of --config; or 0, greedy, for one sample and 1 for more]")
@click.option("--top-p", type=float, help="[default: of --config, or 1]")
@click.option("--max-tokens", type=int, help="Of a completion.  [default: of --config, or 1024]")
@click.option("--max-prompts", type=int, help="The first so many of each file.  [default: all]")
@click.option("--engine", type=click.Choice(["transformers", "vllm"]), help="[default: of --config, or transformers]")
@click.option("--seed", type=int, help="[default: of --config, or 0]")
@click.option("--config", "path", type=PATH, metavar="CONFIG", help="A run file to take everything else from.")
@set_option
@click.option("--out", type=PATH, metavar="FILE", help="Also write every completion, as parquet.")
@json_option
@one_sentence
def evaluate(out: Path | None, as_json: bool, **choices: Any) -> None:
    """
    Examine MODEL, a Hugging Face model directory: avg@k, pass@k, maj@k, truncation and length by data source.

    A checkpoint of a run is such a directory. rollout.slots, rollout.threads, model.dtype and the like, by --set, fit
    the engine to the machine.
    """
    from asyncrl.cli.eval import eval_config
    from asyncrl.cli.eval import evaluate as evaluate_model

    evaluate_model(eval_config(**choices), out=out, as_json=as_json)


@main.command()
@click.argument("run_directory", metavar="RUN", type=PATH)
@click.option("--step", metavar="N|best", help="Optimizer steps, or the best on held-out prompts.  [default: newest]")
@click.option("-o", "--out", type=PATH, metavar="DIR", required=True, help="The directory to make.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Cast.  [default: as trained]")
@one_sentence
def export(run_directory: Path, step: str | None, out: Path, dtype: Any) -> None:
    """Make a Hugging Face model directory of a checkpoint, with tokenizer and model card."""
    from asyncrl.cli.export import export_run

    click.echo(export_run(run_directory, out, step=step, dtype=dtype))


@main.command()
@click.argument("run_directory", metavar="RUN", type=PATH)
@click.argument("tracker", metavar="TRACKER")
@click.option("--once", is_flag=True, help="Hand over what there is, and do not wait for more.")
@set_option
@one_sentence
def track(run_directory: Path, tracker: str, overrides: tuple[str, ...], once: bool) -> None:
    """
    Hand a run over to TRACKER: tensorboard, wandb, mlflow or file.py:name; to its end, if it goes on.

    `asyncrl run` does so by itself with those in trackers.use. It begins where it was left the last time.
    """
    from asyncrl.cli.track import track as track_run

    track_run(run_directory, tracker, overrides, once=once)


@main.command()
@click.argument("plan_path", metavar="PLAN", type=PATH)
@set_option
@json_option
@click.option("--picture", type=PATH, metavar="FILE", help="Also write one self-contained HTML page.")
@click.option("--search/--no-search", "searched", default=True, help="Look for the best split of the devices.")
@one_sentence
def plan(plan_path: Path, overrides: tuple[str, ...], as_json: bool, picture: Path | None, searched: bool) -> None:
    """
    Predict a cluster before renting it: step time, idle shares, staleness, the best split.

    PLAN is a TOML file of measured speeds, lengths and a schedule; conf/plan/ has one that explains every number. The
    broker's own rules run against simulated nodes under a clock that does not wait. The speed-up is over synchronous
    training that has all the devices for both.
    """
    from rich.console import Console

    from asyncrl.cli.plan import study_table, to_json
    from asyncrl.plan.picture import write_picture
    from asyncrl.plan.plan_file import load as load_plan
    from asyncrl.plan.study import study

    with Console(stderr=True).status("simulating"):  # Seen on a terminal only.
        answer = study(load_plan(plan_path, overrides), searched=searched)
    click.echo(to_json(answer) if as_json else study_table(answer, plan_path.stem))
    if picture:
        write_picture(answer, plan_path.stem, picture)
        click.echo(picture, err=True)


@main.command()
@click.argument("run_directory", metavar="RUN", type=PATH)
@json_option
@one_sentence
def audit(run_directory: Path, as_json: bool) -> None:
    """What happened to the data, from the ledger alone; exit code 1 if it does not add up."""
    from asyncrl.cli.inspect import audit_of
    from asyncrl.cli.tables import audit_table, to_json

    accounts = audit_of(run_directory)
    click.echo(to_json(accounts) if as_json else audit_table(accounts))
    sys.exit(1 if accounts.problems else 0)


@main.command()
@click.argument("run_directory", metavar="RUN", type=PATH)
@click.option("--kind", "kinds", multiple=True, help="Only these, such as node.lost; may be given again.")
@one_sentence
def events(run_directory: Path, kinds: tuple[str, ...]) -> None:
    """What happened to the nodes and the run, a line an event."""
    from asyncrl.cli.inspect import events_of
    from asyncrl.cli.tables import event_table

    click.echo(event_table(events_of(run_directory, kinds)))


@main.command("dead-letters")
@click.argument("run_directory", metavar="RUN", type=PATH)
@json_option
@one_sentence
def dead_letters(run_directory: Path, as_json: bool) -> None:
    """Trajectories that failed for good: which, why, and the row of their prompt."""
    from asyncrl.cli.inspect import dead_letters_of
    from asyncrl.cli.tables import dead_letter_table, to_json

    letters = dead_letters_of(run_directory)
    click.echo(to_json(letters) if as_json else dead_letter_table(letters))


@main.command()
@click.option("--role", type=click.Choice(["broker", "reward", "trainer", "rollout"]), help="What it is to do; any.")
@click.option("--npu", is_flag=True, help="Only Ascend NPUs, thoroughly: 64 MiB between two of them.")
@json_option
@one_sentence
def doctor(role: str | None, npu: bool, as_json: bool) -> None:
    """
    What this machine is good for: what is installed, which devices there are, whether collectives move bytes.

    Exit code 1 if it can serve no role, or not the one asked for; what is wrong is said in one sentence each.
    """
    import asyncio
    import os

    from rich.console import Console

    from asyncrl.cli.doctor import show, to_json
    from asyncrl.node.machine.doctor import examine, examine_npu

    if npu and role:
        raise click.UsageError("--npu looks at no role; give one of --npu and --role")
    with Console(stderr=True).status("trying what is here"):  # Seen on a terminal only.
        diagnosis = asyncio.run(examine_npu(os.environ) if npu else examine(os.environ, role or ""))
    if as_json:
        click.echo(to_json(diagnosis))
    else:
        show(Console(), diagnosis)
    sys.exit(0 if diagnosis.is_fit else 1)


@main.group()
def config() -> None:
    """Look at configurations."""


@config.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@one_sentence
def show(config_path: Path, overrides: tuple[str, ...]) -> None:
    """Every value of a run file, and where it comes from."""
    origins = explain(config_path, overrides)
    width = max(len(origin.key) for origin in origins)
    for origin in origins:
        value = "unset" if origin.value is None else repr(origin.value)
        click.echo(f"{origin.key:<{width}}  {value:<24} {origin.source}")


main.add_command(data)


if __name__ == "__main__":
    main()
