"""
Verifiers by name.

    "gsm8k" ────────┐
    "file.py:name" ─┼─ resolve ─▶ verifier with its options bound
    "module:name" ──┘        (of a `VerifierInput`, or with the arguments of verl's compute_score)

A built-in verifier is a callable Struct whose fields are its options, so misspelt options are refused.
"""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.plug_in import hint, is_path, load_function
from asyncrl.reward.verifier import Abstained, GroupFunction, RowColumns, Verifier, VerifierInput, is_async

# ── compute score ─────────────────────────────────────────────────────────────────────────────
# verl's reward functions as verifiers, told by their arguments.
#
#     def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs): ...
#
#   VerifierInput ── completion, answer, data_source, extra ──▶ compute_score ── number, or dict with score ──▶ verdict
#
# A dict's ``acc`` is what verl averages into accuracy; it is ``correct`` here.

REQUIRED = ("solution_str", "ground_truth")
"""Arguments by which such a function is told."""
OPTIONAL = ("data_source", "extra_info")
"""Arguments that it gets if it takes them; verl gives both to custom functions."""


def is_compute_score(function: Callable[..., Any]) -> bool:
    """True if the function takes a completion and a reference answer by verl's names."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # written in C
        return False
    return all(name in parameters for name in REQUIRED)


def adapt(function: Callable[..., Any], options: Mapping[str, Any], *, path: str, setting: str) -> Verifier:
    """
    Make a verifier of such a function, with its options bound.

    Args:
        path: Name of the function in the configuration, for messages.
        setting: Key of that name, for messages.

    Raises:
        ConfigError: The function has further arguments without defaults, or an option is none of its arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    given = [*REQUIRED, *(name for name in OPTIONAL if takes_any or name in {each.name for each in parameters})]
    try:
        inspect.signature(function).bind(**dict.fromkeys(given), **options)
    except TypeError as error:
        names = ", ".join([*given, *options])
        raise ConfigError(f"{setting} {path!r} is called as verl calls it, with {names}: {error}") from error

    def call(inputs: VerifierInput) -> Any:
        values = {
            "solution_str": inputs.completion,
            "ground_truth": inputs.answer,
            "data_source": inputs.data_source,
            "extra_info": RowColumns(inputs.extra),
        }
        return function(**{name: values[name] for name in given}, **options)

    async def judge(inputs: VerifierInput, /) -> Any:
        return _with_correct(await call(inputs))

    def judge_in_order(inputs: VerifierInput, /) -> Any:
        value = call(inputs)
        return _awaited(value) if inspect.isawaitable(value) else _with_correct(value)

    return judge if is_async(function) else judge_in_order


async def _awaited(value: Awaitable[Any]) -> Any:
    return _with_correct(await value)


def _with_correct(value: Any) -> Any:
    if isinstance(value, Mapping) and "acc" in value and "correct" not in value:
        return {**value, "correct": value["acc"]}
    return value


# ── functions of batches ──────────────────────────────────────────────────────────────────────
# TRL's reward functions as verifiers, told by their argument ``completions``.
#
#     def score(prompts, completions, **columns) -> list[float]: ...
#
#   VerifierInput ── prompts=[prompt], completions=[completion], answer=[answer], ... ──▶ function ── [0.5] ──▶ verdict
#
# Each completion is judged alone, in a list of one. Of a chat it is ``[{"role": "assistant", "content": ...}]``; other
# columns are the row's: ``answer``, ``data_source`` and what is in ``extra``, the answer under the name of its column
# included. To compare the completions of a prompt there is ``reward.group``. A function that returns None for a
# completion abstains: other parts of the reward judge it.

COMPLETIONS = "completions"
MESSAGES = "completions of chats are lists of messages, with their text in [0]['content']"
"""Note on the failure of a function that was written for plain texts."""


def is_of_batches(function: Callable[..., Any]) -> bool:
    """True if the function takes a list of completions by TRL's name."""
    try:
        return COMPLETIONS in inspect.signature(function).parameters
    except ValueError:  # written in C
        return False


def adapt_batches(function: Callable[..., Any], options: Mapping[str, Any], *, path: str, setting: str) -> Verifier:
    """
    Make a verifier of such a function, with its options bound. It fails on a row that lacks a column.

    Raises `ConfigError` if an option is none of its arguments; ``path`` and ``setting`` are for the message.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in stars]
    if not takes_any and (unknown := [name for name in options if name not in names]):
        raise ConfigError(f"{setting}: {path!r} has no argument {unknown[0]!r}: {hint(unknown[0], sorted(names))}")

    def call(inputs: VerifierInput) -> Any:
        is_chat = not isinstance(inputs.prompt, str)
        columns = {
            **{name: [value] for name, value in inputs.extra.items()},
            "answer": [inputs.answer],
            "data_source": [inputs.data_source],
            **({"tools": [inputs.tools]} if inputs.tools else {}),
            "prompts": [inputs.prompt],
            COMPLETIONS: [[{"role": "assistant", "content": inputs.completion}] if is_chat else inputs.completion],
        }
        given = {name: each for name, each in columns.items() if takes_any or name in names} | dict(options)
        if lacking := [name for name in needed if name not in given]:
            there = ", ".join(sorted(columns))
            raise VerifierError(f"{path} takes {', '.join(lacking)}, and the row has no such column: it has {there}")
        return function(**given)

    return AsyncOfBatches(call) if is_async(function) else OfBatches(call)


class OfBatches:
    """A function of batches as a verifier; raises `Abstained` where it returns None."""

    def __init__(self, call: Callable[[VerifierInput], Any]) -> None:
        self.call = call

    def __call__(self, inputs: VerifierInput, /) -> Any:
        with _noting_messages(inputs):
            return _only(self.call(inputs))


class AsyncOfBatches(OfBatches):
    async def __call__(self, inputs: VerifierInput, /) -> Any:
        with _noting_messages(inputs):
            return _only(await self.call(inputs))


@contextmanager
def _noting_messages(inputs: VerifierInput) -> Iterator[None]:
    """Add `MESSAGES` to the error of a function that found a list where it expected a text."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if not isinstance(inputs.prompt, str) and "list" in str(error):
            error.add_note(MESSAGES)
        raise


def _only(rewards: Any) -> Any:
    """The one reward of a list of one; raises `Abstained` if it is None, and `VerifierError` for anything else."""
    try:
        (reward,) = rewards
    except (TypeError, ValueError):
        raise VerifierError(
            f"the function of completions returned {rewards!r:.80} for one completion, expected a list of one number"
        ) from None
    if reward is None:
        raise Abstained("the function of completions returned None for the completion, and nothing else judges it")
    return reward


# ── catalogue ─────────────────────────────────────────────────────────────────────────────────

BUILT_IN = {
    "auto": "asyncrl.reward.verifiers.rules:Auto",
    "gsm8k": "asyncrl.reward.verifiers.gsm8k:Gsm8k",
    "math": "asyncrl.reward.verifiers.math:Math",
    "math_dapo": "asyncrl.reward.verifiers.math:MathDapo",
    "geo3k": "asyncrl.reward.verifiers.math:Geo3k",
    "code": "asyncrl.reward.verifiers.code:Code",
    "exact": "asyncrl.reward.verifiers.rules:Exact",
    "numeric": "asyncrl.reward.verifiers.rules:Numeric",
    "format": "asyncrl.reward.verifiers.rules:Format",
    "length": "asyncrl.reward.verifiers.rules:Length",
    "overlong": "asyncrl.reward.verifiers.rules:Overlong",
    "episode": "asyncrl.reward.verifiers.rules:EpisodeReward",
    "reasoning_gym": "asyncrl.reward.verifiers.reasoning_gym:ReasoningGym",
    "remote": "asyncrl.reward.verifiers.remote:Remote",
    "reward_model": "asyncrl.reward.verifiers.remote:RewardModel",
}
"""Name to ``module:class``. Imported on use: some need an optional library."""

EXTRA = {"remote": "remote", "reward_model": "remote"}
"""Optional dependency group of asyncrl that a verifier needs."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "gsm8k": (),
    "math": ("not_computed",),
    "math_dapo": ("not_computed",),
    "geo3k": ("accuracy", "format", "not_computed"),
    "code": ("passed",),
    "exact": (),
    "numeric": (),
    "format": (),
    "length": (),
    "overlong": ("overlong",),
    "reasoning_gym": (),
    "reward_model": (),
}
"""Metrics beside ``correct`` of the verifiers that always have the same ones; those of others only a run shows."""

Options = Mapping[str, str | int | float | bool]
"""Keyword arguments of a verifier: ``reward.options``."""

FUNCTION = "reward.function"


def resolve(function: str, options: Options | None = None, *, setting: str = FUNCTION) -> Verifier:
    """
    Load a verifier by name and bind its options.

    Args:
        function: A built-in name, ``file.py:name`` (from the working directory), or ``package.module:name``.
        setting: Config key that holds the name; for error messages.

    Raises:
        ConfigError: The function is not found, cannot be imported or called, or an option does not fit.
    """
    options = options or {}
    if function in BUILT_IN:
        return _built_in(function, options, setting)
    if not is_path(function):
        raise ConfigError(
            f"{setting}: unknown reward function {function!r}: {hint(function, BUILT_IN)} "
            f"(or path/to/file.py:name, or package.module:name)"
        )
    return _bound(load_function(function, setting=setting), options, function, setting)


def resolve_group(function: str, options: Options) -> GroupFunction:
    """
    Load the function of groups, ``file.py:name`` or ``package.module:name``, and bind its options.

    Raises:
        ConfigError: As `resolve` does.
    """
    setting = "reward.group"
    found = load_function(function, setting=setting)
    _check_signature(found, options, f"{setting} {function!r}", takes="the list of members", like="def rank(members)")
    return partial(found, **options) if options else found


def _built_in(name: str, options: Options, setting: str) -> Verifier:
    verifier = _class(name, setting)
    known: tuple[str, ...] = verifier.__struct_fields__
    for option in options:
        if option not in known:
            raise ConfigError(f"{setting}: {name!r} has no option {option!r}: {hint(option, known)}")
    try:
        ready: Verifier = msgspec.convert(dict(options), verifier)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{setting}: options of {name!r}: {error}") from error
    return ready


def _class(name: str, setting: str) -> type[Any]:
    module, _, kind = BUILT_IN[name].partition(":")
    try:
        found: type[Any] = getattr(importlib.import_module(module), kind)
    except ImportError as error:
        if name not in EXTRA:
            raise
        raise ConfigError(
            f"{setting} {name!r} needs a library that is not installed ({error}); install asyncrl[{EXTRA[name]}]"
        ) from error
    return found


def _bound(found: Callable[..., Any], options: Options, function: str, setting: str) -> Verifier:
    """Bind the options, after checking that the signature accepts them; a function of verl's is called as there."""
    if is_compute_score(found):
        return adapt(found, options, path=function, setting=setting)
    if is_of_batches(found):
        return adapt_batches(found, options, path=function, setting=setting)
    like = "def score(inputs), or verl's def compute_score(data_source, solution_str, ground_truth, extra_info)"
    _check_signature(found, options, f"{setting} {function!r}", takes="the input", like=like)
    return partial(found, **options) if options else found


def _check_signature(found: Callable[..., Any], options: Options, name: str, *, takes: str, like: str) -> None:
    try:
        inspect.signature(found).bind(None, **options)
    except TypeError as error:
        given = f"{takes} and the options {', '.join(options)}" if options else f"one argument, {takes}"
        raise ConfigError(
            f"{name} takes {inspect.signature(found)}, but is called with {given} ({error}): write {like}"
        ) from error
    except ValueError:
        pass  # written in C, without a signature: the first call shows
