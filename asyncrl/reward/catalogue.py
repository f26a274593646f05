"""
Verifiers by name.

    "gsm8k" ────────┐
    "file.py:name" ─┼─ resolve ─▶ verifier with its options bound
    "module:name" ──┘        (of a `VerifierInput`, or with the arguments of verl's compute_score)

A built-in verifier is a callable Struct whose fields are its options, so misspelt options are refused.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path, load_function
from asyncrl.reward.compute_score import adapt, is_compute_score
from asyncrl.reward.verifier import Verifier

BUILT_IN = {
    "auto": "asyncrl.reward.verifiers.auto:Auto",
    "gsm8k": "asyncrl.reward.verifiers.gsm8k:Gsm8k",
    "math": "asyncrl.reward.verifiers.math:Math",
    "math_dapo": "asyncrl.reward.verifiers.math_dapo:MathDapo",
    "geo3k": "asyncrl.reward.verifiers.geo3k:Geo3k",
    "code": "asyncrl.reward.verifiers.code:Code",
    "exact": "asyncrl.reward.verifiers.exact:Exact",
    "numeric": "asyncrl.reward.verifiers.numeric:Numeric",
    "format": "asyncrl.reward.verifiers.format:Format",
    "length": "asyncrl.reward.verifiers.length:Length",
    "overlong": "asyncrl.reward.verifiers.overlong:Overlong",
    "episode": "asyncrl.reward.verifiers.episode:Episode",
    "reasoning_gym": "asyncrl.reward.verifiers.reasoning_gym:ReasoningGym",
    "remote": "asyncrl.reward.verifiers.remote:Remote",
    "reward_model": "asyncrl.reward.verifiers.reward_model:RewardModel",
}
"""Name to ``module:class``. Imported on use: some need an optional library."""

EXTRA = {"math": "math", "geo3k": "math", "remote": "remote", "reward_model": "remote"}
"""Optional dependency group of asyncrl that a verifier needs."""

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
    try:
        inspect.signature(found).bind(None, **options)
    except TypeError as error:
        given = f"the input and the options {', '.join(options)}" if options else "one argument, the input"
        raise ConfigError(
            f"{setting} {function!r} takes {inspect.signature(found)}, but is called with {given} ({error}): write "
            f"def score(inputs), or verl's def compute_score(data_source, solution_str, ground_truth, extra_info)"
        ) from error
    except ValueError:
        pass  # written in C, without a signature: the first call shows
    return partial(found, **options) if options else found
