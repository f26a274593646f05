"""`asyncrl reward try`, `advantage try` and `loss try`: functions of one's own, before a run."""

import ast
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from asyncrl.cli.parts import columns_options, named_columns, report_errors
from asyncrl.errors import ConfigError, RunFailed
from asyncrl.files.json_lines import toml_value
from asyncrl.plug_in import is_path
from asyncrl.terminal import aligned, echo

# ── naming ────────────────────────────────────────────────────────────────────────────────────
# The function that ``FILE`` or ``FILE:NAME`` means on a command line.


REWARDS = ("compute_score", "score", "reward")
"""Usual names of a reward function."""


def full_name(given: str, usual: Sequence[str]) -> str:
    """
    The name as a run file has it: ``file.py:name``, ``module:name`` or a built-in name.

    ``file.py`` alone is its only public function, or the first of the ``usual`` names that it has. It is not run.

    Raises:
        ConfigError: The file does not exist, is no Python, or has no function or several to choose from.
    """
    if is_path(given) or not given.endswith(".py"):
        return given
    found = _public_functions(Path(given))
    chosen = next((name for name in usual if name in found), found[0] if len(found) == 1 else "")
    if not chosen:
        several = f"several functions, {', '.join(found)}" if found else "no public function at its top level"
        raise ConfigError(f"{given} has {several}: name the one to try, as {given}:{found[0] if found else 'NAME'}")
    return f"{given}:{chosen}"


def _public_functions(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except SyntaxError as error:
        raise ConfigError(f"{path} is no Python: {error}") from error
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if not function.name.startswith("_")]


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.group()
def reward() -> None:
    """Try a reward function before a run."""


@reward.command("try")
@click.argument("function", metavar="FUNCTION|CONFIG")
@click.argument("data", metavar="[DATA]", type=PATH, required=False)
@columns_options
@click.option("--num", type=click.IntRange(1), help="Rows, spread over the data.  [default: 200; with --sample 16]")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="No further row is graded after them.")
@click.option("--completion", "given", multiple=True, metavar="TEXT", help="Completion to grade; repeatable.")
@click.option("--sample", "is_sampled", is_flag=True, help="Grade what the model writes, 4 completions a prompt.")
@click.option("--model", metavar="DIR", help="Model of --sample.  [default: that of CONFIG]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of the run file; repeatable.")
@report_errors
def try_reward(
    function: str,
    data: Path | None,
    prompt_column: str | None,
    answer_column: str | None,
    *,
    num: int | None,
    seconds: float,
    given: tuple[str, ...],
    is_sampled: bool,
    model: str | None,
    overrides: tuple[str, ...],
) -> None:
    """
    Grade some rows of a dataset, in the killable workers of a run.

    CONFIG is a run file (.toml), whose reward is tried on its training data. FUNCTION is file.py, file.py:name,
    module:name or a built-in name, and DATA parquet or JSONL, whose columns are guessed if they are not `prompt` and
    `answer`. Each row is graded with its reference answer in three forms, with nothing, and with nonsense as the
    completion; or with each --completion; or, with --sample, with what the model writes, on which most faults depend.
    Rows with a failed or slow verdict are named. Exits with 1 if a verdict fails.

    A function of your own is `def score(inputs)`, which gets a VerifierInput, verl's `def
    compute_score(data_source, solution_str, ground_truth, extra_info)`, or TRL's `def score(prompts, completions,
    **columns)`. It returns a number, or a dict with `score`; TRL's, a list of numbers. With reward.group, the
    completions of a row are then compared as one group.

    \b
    Example:
      asyncrl reward try run.toml --sample
      asyncrl reward try score.py:score train.parquet
      asyncrl reward try gsm8k train.parquet --completion "#### 18" \\
        --set reward.options.method=flexible
    """
    from asyncrl.runtime.machine import require_train
    from asyncrl.runtime.model_files import with_local_copies
    from asyncrl.tools.plug_ins import reward as module

    if is_sampled and given:
        raise click.UsageError("--sample grades what the model writes, and --completion what you wrote: give one")
    if (model is not None) > is_sampled:
        raise click.UsageError("--model is for --sample")
    columns = named_columns(prompt_column, answer_column)
    if data is None:
        if columns:
            raise click.UsageError("--prompt-column and --answer-column are for DATA: a run file names its columns")
        if not function.endswith(".toml"):
            raise click.UsageError("Missing argument 'DATA': the dataset whose rows FUNCTION grades")
        named = [f"model.path={toml_value(model)}"] if model else []
        config = module.run_config(Path(function), [*named, *overrides])
    else:
        name = full_name(function, REWARDS)
        named = [f"data.{kind}_column={toml_value(column)}" for kind, column in columns.items()]
        if is_sampled and not model:
            raise click.UsageError("--sample needs --model DIR beside FUNCTION and DATA: a run file names its model")
        config = module.trial_config(name, data, echo, [*named, *overrides], model=model)
    if data is None or is_sampled:
        config = with_local_copies(config, partial(echo, err=True), has_weights=is_sampled)
    if is_sampled:
        require_train()
        config = module.with_samples(config)
    if not module.try_reward(config, num, given, echo, limit_s=seconds, is_sampled=is_sampled):
        sys.exit(RunFailed.exit_code)


@click.group()
def advantage() -> None:
    """Try an advantage estimator before a run."""


@advantage.command("try")
@click.argument("function", metavar="FUNCTION")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of [algorithm]; repeatable.")
@report_errors
def try_advantage(function: str, overrides: tuple[str, ...]) -> None:
    """
    Compute advantages of a small synthetic step.

    FUNCTION is file.py, file.py:name, module:name or a built-in name. Advantages are shown beside those of `grpo`, as
    means over tokens. Checks that there is a finite number for each token, and that in a group the best trajectory gets
    more than the worst. Exits with 1 if nothing can be learned by it.

    \b
    Example:
      asyncrl advantage try my.py:above_the_best --set algorithm.gamma=0.9
    """
    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.tools.plug_ins import advantage as module

    results = module.examine(full_name(function, ("advantage", "estimate")), overrides)
    _show(module.table(results), module.problems(results))


@click.group()
def loss() -> None:
    """Try a policy loss before a run."""


@loss.command("try")
@click.argument("function", metavar="FUNCTION")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of [algorithm]; repeatable.")
@report_errors
def try_loss(function: str, overrides: tuple[str, ...]) -> None:
    """
    Compute a policy loss on a small synthetic batch.

    FUNCTION is file.py, file.py:name, module:name or a built-in name. Loss and gradient are shown beside those of
    `clipped`. Checks the shape, that both are finite, and that good tokens become likelier. "direction" is the cosine
    between the gradients: 1 is that of `clipped`. Exits with 1 if the loss cannot be trained with.

    \b
    Example:
      asyncrl loss try my.py:tempered --set algorithm.clip_high=0.3
    """
    from asyncrl.runtime.machine import require_train

    require_train()
    from asyncrl.tools.plug_ins import loss as module

    results = module.examine(full_name(function, ("loss",)), overrides)
    _show(module.table(results), [f"{one.case}: {one.problem}" for one in results if one.problem])


def _show(table: list[list[str]], problems: list[str]) -> None:
    """Print both, and exit with 1 if there is a problem."""
    for line in aligned(table, right=range(1, 5)):
        echo(line)
    for problem in problems:
        echo(f"problem  {problem}")
    if problems:
        sys.exit(RunFailed.exit_code)
