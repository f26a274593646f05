"""
verl's reward functions as verifiers, told by their arguments.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs): ...

    VerifierInput ── completion, answer, data_source, extra ──▶ compute_score ── number, or dict with score ──▶ verdict

A dict's ``acc`` is what verl averages into accuracy; it is ``correct`` here.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.reward.verifier import Verifier, VerifierInput, is_async

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
            "extra_info": dict(inputs.extra),
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
