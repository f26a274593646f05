"""
What a verifier is: a function of a `Sample` that gives a number.

    "gsm8k" ────────┐
    "file.py:name" ─┼─ resolve ─▶ verifier(sample) ─▶ 0.5 | True | {"score": 1.0, "terse": 0.2} ─ verdict_of ─▶ Verdict
    "module:name" ──┘

A verdict is a finite number or it is not there: nothing that went wrong is ever read as a reward of zero.
"""

import difflib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages import FinishReason
from asyncrl.reward.fault import describe

BUILT_IN = {
    "gsm8k": "asyncrl.reward.verifiers.gsm8k:Gsm8k",
    "exact": "asyncrl.reward.verifiers.exact:Exact",
    "numeric": "asyncrl.reward.verifiers.numeric:Numeric",
}
"""Name to ``module:class``. A built-in is a callable Struct whose fields are its options: a misspelt one is refused."""

Options = Mapping[str, str | int | float | bool]
"""Keyword arguments for a verifier, as ``reward.options`` has them."""


class Sample(Struct, frozen=True, kw_only=True):
    """What a verifier judges: one completion, and what is known about the right answer."""

    prompt: str | list[dict[str, str]] = ""
    """The text, or the chat as ``[{"role": ..., "content": ...}]``."""
    completion: str
    """What the policy wrote, decoded without special tokens. Hostile: it is whatever pays."""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    """Completion tokens."""


class Verdict(Struct, frozen=True):
    """A finite score, and finite numbers beside it."""

    score: float
    metrics: dict[str, float] = {}
    """Always holds ``correct``, which feeds accuracy."""


class Verifier(Protocol):
    """What `resolve` returns: sync or async."""

    def __call__(self, sample: Sample, /) -> Any | Awaitable[Any]:
        """A number, or a dict with ``score`` and further numbers."""


def resolve(function: str, options: Options | None = None) -> Verifier:
    """
    The verifier that ``reward.function`` names, ready to be called with a sample.

    Args:
        function: A built-in name, ``file.py:name`` (from the working directory), or ``package.module:name``.
        options: Keyword arguments it is called with.

    Raises:
        ConfigError: There is no such file or function, it cannot be imported or called, or an option does not fit.
    """
    options = options or {}
    if function in BUILT_IN:
        return _built_in(function, options)
    where, _, name = function.rpartition(":")
    if not where or not name:
        raise ConfigError(f"unknown reward function {function!r}: {_built_in_hint(function)}")
    found = _member(_load(where, function), name, where)
    return _bound(found, options, function)


def verdict_of(value: object) -> Verdict:
    """
    What a function returned, as a verdict.

    A dict's further numeric keys become metrics; keys with other values are the function's own affair. ``correct`` is
    1.0 if the score is at least 1.0, else 0.0, unless the dict says it itself: a function whose full marks are not 1
    must.

    Raises:
        VerifierError: It is no finite number, or a metric is not finite; says what was returned.
    """
    if not isinstance(value, Mapping):
        score, metrics = _finite(value, "the function"), {}
    elif "score" not in value:
        raise VerifierError(f"the function returned {_shown(value)}, expected a number or a dict with 'score'")
    else:
        score = _finite(value["score"], "the function, as 'score',")
        metrics = {
            key: _finite(item, f"the function, as metric {key!r},")
            for key, item in value.items()
            if key != "score" and isinstance(key, str) and isinstance(item, Real)
        }
    return Verdict(score, {"correct": float(score >= 1.0)} | metrics)


def _finite(value: object, who: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError(f"{who} returned {_shown(value)}, expected a finite number; return 0.0 if it means that")
    return number


def _shown(value: object) -> str:
    """Its ``repr``, short enough for a log line; an int too long to be printed is only named."""
    try:
        text = repr(value)
    except ValueError:
        text = f"an enormous {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _built_in(name: str, options: Options) -> Verifier:
    module, _, kind = BUILT_IN[name].partition(":")
    verifier: type[Any] = getattr(importlib.import_module(module), kind)
    known: tuple[str, ...] = verifier.__struct_fields__
    for option in options:
        if option not in known:
            raise ConfigError(f"reward.options: {name!r} has no option {option!r}: {_hint(option, known)}")
    try:
        ready: Verifier = msgspec.convert(dict(options), verifier)
    except msgspec.ValidationError as error:
        raise ConfigError(f"reward.options of {name!r}: {error}") from error
    return ready


def _load(where: str, function: str) -> ModuleType:
    """The module a function lives in, from its file or its dotted name."""
    is_file = where.endswith(".py") or "/" in where
    if is_file and not Path(where).is_file():
        raise ConfigError(f"reward.function is {function!r}, but there is no file {Path(where).absolute()}")
    try:
        return _run_file(Path(where)) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # importing runs a person's code, which may raise anything
        why = describe(error, __file__)
        raise ConfigError(f"reward.function is {function!r}, but {where} cannot be imported: {why}") from error


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module whose name collides with no other."""
    spec = importlib.util.spec_from_file_location(f"asyncrl_reward_function_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file: its name must end in .py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _member(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{where} has no function {name!r}: {_hint(name, known)}")
    if not callable(found) or isinstance(found, type):
        raise ConfigError(f"{name!r} in {where} is {_shown(found)}, expected a function of one sample")
    return found  # type: ignore[no-any-return]


def _bound(found: Callable[..., Any], options: Options, function: str) -> Verifier:
    """The function with its options, after checking that it can be called like that."""
    try:
        inspect.signature(found).bind(None, **options)
    except TypeError as error:
        given = f"the sample and the options {', '.join(options)}" if options else "one argument, the sample"
        raise ConfigError(f"reward.function {function!r} is called with {given}: {error}") from error
    except ValueError:
        pass  # written in C, without a signature: the first call will tell
    return partial(found, **options) if options else found


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"expected one of: {', '.join(known)}" if known else "there is none at all"


def _built_in_hint(name: str) -> str:
    return f"{_hint(name, BUILT_IN)} (or path/to/file.py:name, or package.module:name)"
