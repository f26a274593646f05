"""`asyncrl data`: convert published datasets to parquet, and check datasets before a run."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asyncrl.cli.parts import columns_options, named_columns, report_errors, together
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.reward import Reward
from asyncrl.terminal import echo

if TYPE_CHECKING:  # only the commands that need pyarrow or a tokenizer import them
    from asyncrl.data.check import Inspection
    from asyncrl.data.prepare.published import PublishedDataset
    from asyncrl.data.table import Rows

    Checked = tuple[Inspection, str, Reward | None]
    """Inspection of a dataset, the chat template of its model, and the rewards of its run if it belongs to one."""

PATH = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """Convert and check datasets."""


# ── prepare ─────────────────────────────────────────────────────────────────────────────────


@data.group()
def prepare() -> None:
    """Convert a downloaded dataset to parquet, in verl's row schema."""


_options = together(
    click.option("-o", "--out", type=PATH, required=True, help="The parquet file to write."),
    click.option("--split", default="", show_default=False, help="In extra_info.  [default: the name of the source]"),
    click.option("--instruction", help="Text after each prompt instead of the dataset's own; '' for none."),
    click.option("--chat/--text", "is_chat", default=True, help="Prompts as a user message, or as plain text."),
    click.option("--skip-bad", is_flag=True, help="Leave bad rows out; otherwise they are an error."),
)


def _add_published(name: str, metavar: str, dataset: str, text: str) -> None:
    """Add a command that converts ``dataset``, a ``module:NAME`` of asyncrl.data.prepare."""

    @prepare.command(name, help=text)
    @click.argument("source", metavar=metavar, type=PATH)
    @_options
    @report_errors
    def convert(source: Path, **choices: Any) -> None:
        module, _, constant = dataset.partition(":")
        _prepare(getattr(import_module(f"asyncrl.data.prepare.{module}"), constant), source, choices)


_add_published("gsm8k", "FILE", "published:GSM8K", "Convert GSM8K from its JSONL.")
_add_published("geo3k", "FOLDER|FILE", "geo3k:GEO3K", "Convert Geometry3K from a folder, or from parquet.")
_add_published("harbor", "FOLDER", "harbor:HARBOR", "Convert folders of tasks: Harbor's, and Terminal-Bench's.")
_add_published("math", "FILE", "published:MATH", "Convert MATH from JSONL or parquet.")
_add_published("dapo-math", "FILE", "published:DAPO_MATH", "Convert DAPO-Math from its parquet; keep each prompt once.")


_own_options = together(
    _options,
    click.option("--unique", is_flag=True, help="Keep a repeated prompt once."),
    click.option(
        "--data-source",
        default="own",
        show_default=True,
        metavar="NAME",
        help="Name that selects a built-in verifier, such as openai/gsm8k; with a reward of your own, any name.",
    ),
    columns_options,
    click.argument("source", metavar="FILE", type=PATH),
)


@prepare.command()
@_own_options
@report_errors
def jsonl(**choices: Any) -> None:
    """
    Convert prompts and answers of your own.

    \b
    Example:
      asyncrl data prepare jsonl rows.jsonl -o train.parquet --prompt-column question --answer-column solution
    """
    from asyncrl.data.table import open_rows

    _prepare_own(open_rows, **choices)


@prepare.command("csv")
@_own_options
@report_errors
def csv_(**choices: Any) -> None:
    """
    Convert prompts and answers of your own from CSV.

    FILE has the names of its columns in its first line, and commas, semicolons or tabs between values. Values are taken
    as they are written.

    \b
    Example:
      asyncrl data prepare csv rows.csv -o train.parquet --answer-column solution
    """
    from asyncrl.data.prepare.own_rows import open_csv

    _prepare_own(open_csv, **choices)


def _prepare_own(
    open_file: Callable[[Path], "Rows"],
    *,
    source: Path,
    prompt_column: str | None,
    answer_column: str | None,
    data_source: str,
    unique: bool,
    **choices: Any,
) -> None:
    from asyncrl.data.prepare.own_rows import own_rows
    from asyncrl.data.table import OPTION, Columns, columns_of

    rows = open_file(source)
    columns = columns_of(rows, named_columns(prompt_column, answer_column), OPTION)
    if columns != Columns(prompt_column or "prompt", answer_column or "answer"):
        echo(f"{source}: {columns}")
    _prepare(own_rows(data_source, columns, repeats=unique, open_file=lambda _: rows), source, choices)


@prepare.command("reasoning-gym")
@click.argument("name")
@click.option("--size", type=click.IntRange(1), default=1000, show_default=True, help="Tasks to generate.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same tasks.")
@_options
@report_errors
def reasoning_gym(name: str, size: int, seed: int, **choices: Any) -> None:
    """
    Generate tasks of the package reasoning-gym.

    NAME is one of its datasets, such as countdown.
    """
    from asyncrl.data.prepare.reasoning_gym import reasoning_gym_rows

    _prepare(reasoning_gym_rows(name, size, seed), Path(name), choices)


def _prepare(dataset: "PublishedDataset", source: Path, choices: dict[str, Any]) -> None:
    from asyncrl.data.check import bad_row_lines
    from asyncrl.data.prepare.published import prepare as write_prepared

    result = write_prepared(dataset, source, **choices)
    echo(f"{result.path}: {result.num_rows} of {result.num_read} rows")
    if result.num_repeated:
        echo(f"  {result.num_repeated} repeat others and were left out")
    for sentence in result.odd:
        echo(f"note: {sentence}")
    for line in bad_row_lines(result.bad) if result.bad else []:
        echo(line)


# ── check ───────────────────────────────────────────────────────────────────────────────────


@data.command()
@click.argument("paths", metavar="FILE...", type=PATH, nargs=-1, required=True)
@click.option("--model", type=PATH, help="Model directory whose tokenizer and chat template count the tokens.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="Longest usable prompt; needs --model.")
@click.option("--list", "all_bad", is_flag=True, help="List every row that cannot be used.")
@columns_options
@report_errors
def check(
    paths: tuple[Path, ...],
    *,
    model: Path | None,
    max_prompt_tokens: int | None,
    all_bad: bool,
    prompt_column: str | None,
    answer_column: str | None,
) -> None:
    """
    Describe datasets, and list rows that cannot be used.

    FILE is a dataset, or a run file (.toml), whose datasets are then read as the run would read them. The columns of a
    dataset alone are guessed if they are not `prompt` and `answer`.
    """
    from asyncrl.data.chat_template import text_advice
    from asyncrl.data.check import shared_lines
    from asyncrl.reward.routing import check_routes

    if max_prompt_tokens and not model:
        raise click.UsageError("--max-prompt-tokens needs --model")
    named = named_columns(prompt_column, answer_column)
    if named and any(path.suffix == ".toml" for path in paths):
        raise click.UsageError("--prompt-column and --answer-column are for datasets: a run file names its columns")
    checked: list[Checked] = []
    for path in paths:
        is_run_file = path.suffix == ".toml"
        checked += _check_run(path) if is_run_file else [_check_file(path, named, model, max_prompt_tokens)]
    for inspection, template, _ in checked:
        echo(inspection.text())
        for row in inspection.bad if all_bad else []:
            echo(f"{row.place}: {row.reason}")
        for sentence in text_advice(template, has_texts=inspection.num_texts > 0):
            echo(f"note: {sentence}")
    for line in shared_lines([inspection for inspection, _, _ in checked]):
        echo(line)
    for inspection, _, reward in checked:
        inspection.require_usable()
        if reward:
            check_routes(reward, inspection.data_sources)


def _check_file(path: Path, named: dict[str, str], model: Path | None, max_tokens: int | None) -> "Checked":
    from asyncrl.data.chat_template import read_template
    from asyncrl.data.check import inspect
    from asyncrl.data.table import OPTION, guessed

    columns = Data(
        train=str(path), prompt_column=named.get("prompt", "prompt"), answer_column=named.get("answer", "answer")
    )
    from asyncrl.runtime.checks import readers

    count_tokens, find_spelled = readers(model, columns) if model else (None, None)
    settings = guessed(columns, str(path), echo, OPTION)
    inspection = inspect(path, settings, count_tokens=count_tokens, find_spelled=find_spelled, max_tokens=max_tokens)
    return inspection, read_template(model) if model else "", None


def _check_run(path: Path) -> "list[Checked]":
    from asyncrl.config.run_file import load_config
    from asyncrl.data.chat_template import read_template
    from asyncrl.data.check import inspect
    from asyncrl.runtime.model_files import with_local_copies

    config = with_local_copies(load_config(path), partial(echo, err=True), has_weights=False)
    settings: Data = config.data
    model = Path(config.model.path)
    from asyncrl.runtime.checks import readers

    count_tokens, find_spelled = readers(model, settings) if model.is_dir() else (None, None)
    max_tokens = settings.max_prompt_tokens if settings.truncation == "error" else None
    files = settings.train_files + settings.held_out_files
    inspections = [
        inspect(
            Path(file),
            settings,
            count_tokens=count_tokens,
            find_spelled=find_spelled,
            max_tokens=max_tokens,
            are_tasks=config.environment.is_set,
        )
        for file in files
    ]
    template = "" if config.environment.is_set else read_template(model)
    return [(inspection, template, config.reward) for inspection in inspections]
