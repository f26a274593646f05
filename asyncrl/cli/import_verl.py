"""`asyncrl import-verl`: a run file from a launch script of verl, with an account of every option."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from asyncrl.cli.parts import report_errors
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.files.atomic import output
from asyncrl.files.foreign import read_bytes
from asyncrl.terminal import aligned, command_line, echo
from asyncrl.tools.verl.expand import expand
from asyncrl.tools.verl.launch import Launch, find_launch, of_options
from asyncrl.tools.verl.options import files
from asyncrl.tools.verl.overrides import Fate
from asyncrl.tools.verl.translate import Translation, translate
from asyncrl.tools.verl_verdict import ScriptVerdict, judge

# ── translation ───────────────────────────────────────────────────────────────────────────────
# The launch of a script or of options, and the account of its translation.

ORDER: Sequence[Fate] = ("mapped", "not needed", "substituted", "not supported", "unknown")


def report(translation: Translation, complaints: Sequence[str], judgement: ScriptVerdict) -> list[str]:
    """Lines of the account: the options by fate, what the checks say, and the verdict with counts."""
    lines: list[str] = []
    for fate in ORDER:
        if accounts := [account for account in translation.accounts if account.fate == fate]:
            lines += [fate, *aligned([[f"  {account.option}", account.detail] for account in accounts]), ""]
    notes = (*translation.notes, *complaints, *judgement.unread, *judgement.problems)
    lines += [f"note: {note}" for note in notes]
    lines += [f"missing: {sentence}" for sentence in translation.missing]
    lines += [f"not known: {sentence}" for sentence in judgement.unknown]
    counts = Counter(account.fate for account in translation.accounts)
    return [*lines, f"{judgement.verdict}: " + ", ".join(f"{counts[fate]} {fate}" for fate in ORDER if counts[fate])]


def launch_of(arguments: Sequence[str], environment: Sequence[str]) -> tuple[Launch, list[str]]:
    """Launch of a script with its arguments, or of options, and what the script's shell says. Raises `ConfigError`."""
    first, *rest = arguments
    script = Path(first)
    if "=" in first and not script.is_file():
        return of_options(arguments), []
    expansion = expand(script, rest, dict(_variables(environment)))
    complaints = [_said(complaint) for complaint in expansion.complaints]
    text = read_bytes(script).decode("utf-8", "replace")
    try:
        launch = find_launch(
            expansion.commands,
            rest,
            environments=expansion.environments,
            script=text,
            name=script.name,
            folders=[Path.cwd(), script.parent],
        )
    except ConfigError as error:
        if expansion.stopped:
            raise ConfigError(f"{script}: {expansion.stopped}") from error
        raise ConfigError("; ".join([str(error), *complaints])) from error
    return launch, complaints


def _said(complaint: str) -> str:
    """A complaint of the script's shell, and what to do if a variable is not set."""
    said = f"the script's shell says: {complaint}"
    unset = re.fullmatch(r"line \d+: (\$?\w+): .*", complaint)
    if unset and (unset[1].isupper() or "unbound variable" in complaint):
        argument = "give it after the script's name" if unset[1].startswith("$") else f"give it, --env {unset[1]}=VALUE"
        return f"{said}; {argument}"
    return said


def _variables(environment: Sequence[str]) -> Iterator[tuple[str, str]]:
    for variable in environment:
        name, equals, value = variable.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--env {variable!r}: expected NAME=VALUE, such as MODEL_PATH=models/Qwen3-8B")
        yield name, value


def _num_rows(launch: Launch) -> int | None:
    """Rows of the training data; None if a file of it cannot be read."""
    train, most = launch.overrides.get("data.train_files"), launch.overrides.get("data.train_max_samples")
    if train is None:
        return None
    named = files(train.value)
    try:
        count = sum(len(open_rows(Path(path))) for path in ([named] if isinstance(named, str) else named))
    except DataError:
        return None
    return min(count, most.value) if most and isinstance(most.value, int) and most.value > 0 else count


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.command("import-verl", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", metavar="SCRIPT|OPTION...", nargs=-1, required=True)
@click.option("-o", "--out", type=PATH, metavar="FILE", help="Run file to write.  [default: print it]")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Variable for SCRIPT; repeatable.")
@click.option("--rows", type=click.IntRange(1), help="Rows of the training data.  [default: counted, if it is here]")
@report_errors
def import_verl(arguments: tuple[str, ...], out: Path | None, environment: tuple[str, ...], rows: int | None) -> None:
    """
    Translate a launch script of verl to a run file.

    SCRIPT is a shell script that starts a trainer of verl; arguments after it are passed to it and added to its
    options. Each OPTION is KEY=VALUE in Hydra's syntax, in place of a script. The script runs in a jail without network
    and programs, and with the files alone that it names and that are beside it or below this folder. Python only
    records its arguments there. Of this environment the script has HOME and what --env gives.

    The run file has a comment where a meaning differs. The table on stderr accounts for every option. The verdict is
    that of `asyncrl run --dry-run`, with the defaults of the model's type in place of a model that is not here. Exits
    with 1 if the run cannot work as translated: an option has no substitute, something is missing, or a check fails.

    \b
    Example:
      asyncrl import-verl run_grpo.sh --env MODEL_PATH=models/base -o run.toml
      asyncrl import-verl algorithm.adv_estimator=grpo \\
        data.train_files=train.parquet ...
    """
    launch, complaints = launch_of(arguments, environment)
    translation = translate(launch, _num_rows(launch) if rows is None else rows)
    if out:
        with output(out) as unfinished:
            unfinished.write_text(translation.toml, encoding="utf-8")
    else:
        echo(translation.toml, nl=False)
    judgement = judge(translation)
    for line in report(translation, complaints, judgement):
        echo(line, err=True)
    if out:
        echo(out)
    if judgement.verdict == "cannot":
        sys.exit(1)
    if out:
        echo(f"to try it on a CPU: {command_line('asyncrl', 'run', out)} --scale tiny --set run.steps=3", err=True)
