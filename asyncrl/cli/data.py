"""`asyncrl data`: published datasets become parquet, and a dataset is looked at before a run is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from asyncrl.cli.sentence import one_sentence
from asyncrl.config.sections import Data, Reward

if TYPE_CHECKING:  # pyarrow and a tokenizer are loaded by those commands that need them
    from asyncrl.data.check import CountTokens, Inspection
    from asyncrl.data.prepare.published import Prepared, Published

    Looked = tuple[Inspection, Reward | None]
    """A dataset, and what the run it is of judges by, if it is of one."""

PATH = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """Make and check datasets."""


# ── prepare ─────────────────────────────────────────────────────────────────────────────────


@data.group()
def prepare() -> None:
    """Turn a dataset that was downloaded into parquet, in verl's row schema."""


class Choices(Struct, frozen=True, kw_only=True):
    """What every kind of dataset can be told."""

    out: Path
    split: str
    instruction: str | None
    is_chat: bool
    skip_bad: bool


def _options(command: Any) -> Any:
    for option in (
        click.option("-o", "--out", type=PATH, required=True, help="The parquet file to write."),
        click.option("--split", default="", show_default="the name of the source", help="For extra_info."),
        click.option("--instruction", help="Behind each prompt, in place of the dataset's own; '' for none."),
        click.option("--chat/--text", "is_chat", default=True, help="Prompts as a message of the user, or plain text."),
        click.option("--skip-bad", is_flag=True, help="Leave bad rows out; otherwise they are an error."),
    ):
        command = option(command)
    return command


@prepare.command()
@click.argument("source", metavar="FILE", type=PATH)
@_options
@one_sentence
def gsm8k(source: Path, **choices: Any) -> None:
    """GSM8K, from its JSONL."""
    from asyncrl.data.prepare.gsm8k import GSM8K

    _prepare(GSM8K, source, Choices(**choices))


@prepare.command()
@click.argument("source", metavar="FOLDER|FILE", type=PATH)
@_options
@one_sentence
def geo3k(source: Path, **choices: Any) -> None:
    """Geometry3K, from the folder of one split, or parquet."""
    from asyncrl.data.prepare.geo3k import GEO3K

    _prepare(GEO3K, source, Choices(**choices))


@prepare.command()
@click.argument("source", metavar="FILE", type=PATH)
@_options
@one_sentence
def math(source: Path, **choices: Any) -> None:
    """MATH, from JSONL or parquet with problem and solution."""
    from asyncrl.data.prepare.competition_math import MATH

    _prepare(MATH, source, Choices(**choices))


@prepare.command("dapo-math")
@click.argument("source", metavar="FILE", type=PATH)
@_options
@one_sentence
def dapo_math(source: Path, **choices: Any) -> None:
    """DAPO-Math, from its parquet; each of its prompts once."""
    from asyncrl.data.prepare.dapo_math import DAPO_MATH

    _prepare(DAPO_MATH, source, Choices(**choices))


@prepare.command()
@click.argument("source", metavar="FILE", type=PATH)
@click.option("--prompt-key", default="prompt", help="Column of texts or chats.")
@click.option("--answer-key", default="answer", help="Column of texts or numbers.")
@click.option("--data-source", required=True, help="Which verifier is to judge it, such as openai/gsm8k.")
@click.option("--unique", is_flag=True, help="Keep a prompt once that comes several times.")
@_options
@one_sentence
def jsonl(source: Path, prompt_key: str, answer_key: str, data_source: str, unique: bool, **choices: Any) -> None:
    """Questions and answers of your own, from JSONL or parquet."""
    from asyncrl.data.prepare.own_rows import own_rows

    _prepare(own_rows(data_source, prompt_key, answer_key, repeats=unique), source, Choices(**choices))


def _prepare(published: "Published", source: Path, choices: Choices) -> None:
    from asyncrl.data.prepare.published import prepare as write_prepared

    prepared = write_prepared(
        published,
        source,
        choices.out,
        split=choices.split,
        instruction=choices.instruction,
        is_chat=choices.is_chat,
        skip_bad=choices.skip_bad,
    )
    click.echo(_told(prepared))


def _told(prepared: "Prepared") -> str:
    from asyncrl.data.check import unusable

    lines = [f"{prepared.path}: {prepared.num_rows} of {prepared.num_read} rows"]
    if prepared.num_repeated:
        lines.append(f"  {prepared.num_repeated} repeat others and were left out")
    return "\n".join(lines + (unusable(prepared.bad) if prepared.bad else []))


# ── check ───────────────────────────────────────────────────────────────────────────────────


@data.command()
@click.argument("paths", metavar="FILE...", type=PATH, nargs=-1, required=True)
@click.option("--model", type=PATH, help="Also count tokens, with the tokenizer and chat template of this directory.")
@click.option("--max-prompt-tokens", type=click.IntRange(1), help="With --model: longer prompts cannot be used.")
@click.option("--list", "all_bad", is_flag=True, help="Name every row that cannot be used.")
@one_sentence
def check(paths: tuple[Path, ...], model: Path | None, max_prompt_tokens: int | None, all_bad: bool) -> None:
    """
    Say what datasets hold, and what is wrong with them.

    FILE is a dataset, or the run file (.toml) of a run: then its datasets, as the run would read and judge them.
    """
    from asyncrl.reward.routing import check_routes

    if max_prompt_tokens and not model:
        raise click.UsageError("--max-prompt-tokens needs --model")
    looked = [
        one
        for path in paths
        for one in (_of_run(path) if path.suffix == ".toml" else [_of_file(path, model, max_prompt_tokens)])
    ]
    for inspection, _ in looked:
        click.echo(inspection.text())
        for row in inspection.bad if all_bad else []:
            click.echo(f"{row.place}: {row.reason}")
    for inspection, reward in looked:
        inspection.require_usable()
        if reward:
            check_routes(reward, inspection.data_sources)


def _of_file(path: Path, model: Path | None, max_tokens: int | None) -> "Looked":
    from asyncrl.data.check import inspect

    count_tokens = _tokens_of(model, {}) if model else None
    return inspect(path, count_tokens=count_tokens, max_tokens=max_tokens), None


def _of_run(path: Path) -> "list[Looked]":
    from asyncrl.config.run_file import load
    from asyncrl.data.check import inspect

    config = load(path)
    settings: Data = config.data
    model = Path(config.model.path)
    count_tokens = _tokens_of(model, settings.chat_template_kwargs) if model.is_dir() else None
    max_tokens = settings.max_prompt_tokens if settings.truncation == "error" else None
    files = settings.train_files + settings.held_out_files
    found = [inspect(Path(file), settings, count_tokens=count_tokens, max_tokens=max_tokens) for file in files]
    return [(inspection, config.reward) for inspection in found]


def _tokens_of(model: Path, template_kwargs: dict[str, str | int | float | bool]) -> "CountTokens":
    from asyncrl.data.chat_template import check_template, read_template
    from asyncrl.rollout.engines.text import encode, load_tokenizer

    check_template(read_template(model), template_kwargs, has_chats=False)
    tokenizer = load_tokenizer(str(model))
    return lambda prompt: len(encode(tokenizer, prompt, template_kwargs))
