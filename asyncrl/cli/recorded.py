"""Commands that read the files of a run, also while it goes on: report, dashboard, audit, events, why, samples, ..."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import click

from asyncrl.cli.parts import RUN_PATH, json_option, newest_run, report_errors
from asyncrl.cli.settings import set_option
from asyncrl.errors import LedgerError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.terminal import echo, to_json, told_if_slow

# ── commands ──────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("runs", metavar="[RUN]...", type=RUN_PATH, nargs=-1)
@click.option(
    "-o",
    "--out",
    type=PATH,
    help="File to write.  [default: report.html in the run directory; of several, compared.html in the first]",
)
@report_errors
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """
    Write an HTML report about one run, or compare several.

    Each RUN is a run directory, by default the newest below runs/. The page has curves, headline numbers, settings and
    events, and needs no network. It withholds what its folder does: in a run directory it is its owner's alone.
    """
    from asyncrl.tools.report.report import write_report

    runs = runs or (newest_run(),)
    report = RunDirectory(runs[0]).report
    out = out or (report if len(runs) == 1 else report.with_name("compared.html"))
    write_report(runs, out)
    echo(out)


@click.command()
@click.argument("runs", metavar="RUN...", type=RUN_PATH, nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", help="Address to listen on; one beyond loopback needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free one.  [default: 8460, or a free one]")
@report_errors
def dashboard(runs: tuple[Path, ...], host: str, port: int | None) -> None:
    """
    Show one run, or several side by side, in a browser.

    Each RUN is a run directory; a running one is followed. Prints the address and serves it until interrupted. With
    ASYNCRL_DASHBOARD_TOKEN set, every visitor needs that token.

    \b
    Example:
      asyncrl dashboard runs/quickstart
      asyncrl dashboard runs/a runs/b --port 0
    """
    from asyncrl.runtime.machine import require_dashboard

    require_dashboard()
    from asyncrl.tools.dashboard.app import show

    show(runs, host, port)


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--quick", "is_quick", is_flag=True, help="Leave out contents of checkpoints and payloads.")
@click.option("--grade", "is_graded", is_flag=True, help="Grade the samples again by the run's reward, and compare.")
@click.option("--spool", "spools", type=PATH, multiple=True, metavar="DIR", help="Also read this spool; repeatable.")
@json_option
@report_errors
def audit(run_directory: Path, *, is_quick: bool, is_graded: bool, spools: tuple[Path, ...], as_json: bool) -> None:
    """
    Count what became of every group, trajectory and token.

    RUN is a run directory. Its ledger is checked record by record, and its config, metrics, checkpoints, samples,
    spool, summary and data against the ledger. Exits with 74 if anything does not add up: a group was lost, skipped or
    trained twice, a token is older than the schedule allows, a file was edited, or two files disagree.

    Of the spools, the one of the broker's process is read. Of others, name the folder, or a copy of it: DIR is what its
    asyncrl-node was given as --dir.
    """
    from asyncrl.cli.inspect import audit_table, read_audit

    with told_if_slow(f"comparing every record of {run_directory} with its files; this takes minutes for a long run"):
        accounts = read_audit(run_directory, is_quick=is_quick, is_graded=is_graded, spools=spools)
    echo(to_json(accounts) if as_json else audit_table(accounts))
    sys.exit(LedgerError.exit_code if accounts.problems else 0)


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.option("--only", metavar="KIND", multiple=True, help="Only this kind, or kinds such as 'node.'; repeatable.")
@click.option("--without", metavar="KIND", multiple=True, help="Leave out this kind, likewise; repeatable.")
@click.option("-n", "--lines", "number", type=click.IntRange(0), help="Only this many of the last events.")
@click.option("-f", "--follow", is_flag=True, help="Print further events as they happen, until the run is over.")
@report_errors
def events(
    run_directory: Path, *, only: tuple[str, ...], without: tuple[str, ...], number: int | None, follow: bool
) -> None:
    """
    Print the events of a run, one per line.

    RUN is a run directory. Events are nodes that join, leave or fail, dropped groups, evaluations, and so on. A KIND
    that ends with a dot stands for all kinds that begin so.

    \b
    Example:
      asyncrl events runs/quickstart -n 20 --without version.live
      asyncrl events runs/quickstart -f --only node. --only eval.
    """
    from asyncrl.cli.logs import Events, event_lines, show_last

    with suppress(KeyboardInterrupt):
        if not show_last(Events(run_directory, only, without), event_lines, number, is_followed=follow) and not follow:
            echo("no such events", err=True)


@click.command()
@click.argument("run_directory", metavar="[RUN]", type=RUN_PATH, default=newest_run)
@click.option("--predict/--no-predict", default=True, show_default=True, help="Simulate changes; takes some seconds.")
@click.option("--staleness", is_flag=True, help="Choose schedule.staleness for the run from here on, as 'auto' does.")
@json_option
@report_errors
def why(run_directory: Path, *, predict: bool, staleness: bool, as_json: bool) -> None:
    """
    Say where the time of a run goes, and its bottleneck.

    RUN is a run directory, by default the newest below runs/, also of a run that goes on. The seconds of every node are
    divided among what it did and what it waited for. Then come the bottleneck, the setting to change, and what some
    changes would bring: the broker's own rules in a simulated cluster that is fitted to the run.

    With --staleness, the answer is the least schedule.staleness that is about as fast as the fastest, by such a plan.
    With schedule.staleness = "auto" the broker asks this every few steps, and sets it.
    """
    if staleness:
        from asyncrl.tools.plan.fit import choose_staleness

        choice = choose_staleness(run_directory)
        echo(to_json(choice) if as_json else f"{choice.reason}; now {choice.before:g}")
        return

    from asyncrl.tools.why_lines import why_of, why_text

    found = why_of(run_directory, is_predicted=predict)
    echo(to_json(found) if as_json else why_text(run_directory.resolve().name, found))


@click.command()
@click.argument("run_directory", metavar="[RUN]", type=RUN_PATH, default=newest_run)
@click.option("--step", type=click.IntRange(0), help="Step; file step_000009.parquet has step 10.  [default: newest]")
@click.option("--best", "order", flag_value="best", help="Show those with the highest rewards.")
@click.option("--worst", "order", flag_value="worst", help="Show those with the lowest rewards.")
@click.option("-n", "number", type=click.IntRange(1), default=5, help="Most samples shown.")
@click.option("--held-out", "is_held_out", is_flag=True, help="Show held-out samples; --step is the steps before them.")
@json_option
@report_errors
def samples(
    run_directory: Path,
    *,
    step: int | None,
    order: Literal["best", "worst"] | None,
    number: int,
    is_held_out: bool,
    as_json: bool,
) -> None:
    """
    Show samples of a step: prompts, completions, rewards.

    RUN is a run directory, by default the newest below runs/, also of a run that goes on. By default the samples are of
    different prompts of the newest step. Long texts are shortened in the middle; --json has them in full. Held-out
    samples are stored with evaluation.answers.

    \b
    Example:
      asyncrl samples runs/quickstart
      asyncrl samples runs/quickstart --step 10 --worst -n 3
    """
    import shutil

    from asyncrl.tools.sample_texts import read_samples, sample_lines

    found = read_samples(run_directory, step=step, is_held_out=is_held_out, number=number, order=order or "spread")
    if as_json:
        echo(to_json(found))
        return
    for line in sample_lines(found, run_directory, shutil.get_terminal_size().columns):
        echo(line)


@click.command("dead-letters")
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@json_option
@report_errors
def dead_letters(run_directory: Path, as_json: bool) -> None:
    """
    List the trajectories that failed too often.

    RUN is a run directory. Each line names the trajectory as GROUP/INDEX, the dataset row of its prompt, and the reason
    of its last failure.
    """
    from asyncrl.cli.inspect import dead_letter_table, read_dead_letters

    letters = read_dead_letters(run_directory)
    echo(to_json(letters) if as_json else dead_letter_table(letters))


@click.command()
@click.argument("run_directory", metavar="RUN", type=RUN_PATH)
@click.argument("tracker", metavar="TRACKER")
@click.option("--once", is_flag=True, help="Send the existing records, then exit.")
@set_option
@report_errors
def track(run_directory: Path, tracker: str, overrides: tuple[str, ...], once: bool) -> None:
    """
    Send the metrics and events of a run to a tracker.

    RUN is a run directory; TRACKER is tensorboard, wandb, mlflow, trackio or file.py:name. Continues after the last
    record sent, and follows a running run to its end. `asyncrl run` starts this command for each tracker in
    trackers.use.

    \b
    Example:
      asyncrl track runs/quickstart tensorboard
    """

    from asyncrl.tools.track import track_run

    track_run(run_directory, tracker, overrides, once=once)


COMMANDS = (report, dashboard, samples, audit, events, why, dead_letters, track)
