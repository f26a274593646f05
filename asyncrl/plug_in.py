"""
Loading of custom functions that a configuration names by their location.

    "file.py:name" ──────────┐
    "package.module:name" ───┴─ load_function ─▶ function ─ settings_of ─▶ the settings it reads, and their defaults
                                                     └──── raised? ─ describe ─▶ one line with the place to look at

A file is run once per process, and all functions loaded from it share its module. This module needs the standard
library of Python 3.9 alone: workers of environments load it under other interpreters.
"""

import difflib
import importlib
import importlib.util
import inspect
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.foreign_text import escaped, shown
from asyncrl.similar_path import did_you_mean

ALLOW_VARIABLE = "ASYNCRL_ALLOW_CODE"
"""Environment variable with the folders and modules that this process may import functions from, like ``PATH``."""
MAX_CHARS = 400
"""Limit for the text of an exception: some quote their whole input."""
REQUIRED: Final = inspect.Parameter.empty
"""Marks a setting without a default."""


def is_path(name: str) -> bool:
    """True for ``file.py:name`` or ``package.module:name``, False for a built-in name."""
    return ":" in name


def load_function(path: str, *, setting: str) -> Callable[..., Any]:
    """Load a function; see `load_callable`. A class is refused."""
    found = load_callable(path, setting=setting)
    if isinstance(found, type):
        where, _, name = path.rpartition(":")
        raise ConfigError(f"{setting}: {name!r} in {where} is {repr(found)[:80]}, expected a function")
    return found


def load_callable(path: str, *, setting: str) -> Callable[..., Any]:
    """
    Load a function or a class.

    Args:
        path: ``file.py:name`` (from the working directory), or ``package.module:name``.
        setting: Full key of the setting, such as ``reward.function``; error messages begin with it.

    Raises:
        ConfigError: The file or function does not exist, or cannot be imported.
    """
    where, _, name = path.rpartition(":")
    if not where or not name:
        raise ConfigError(f"{setting} is {path!r}, expected path/to/file.py:name or package.module:name")
    _require_allowed(where, path, setting)
    return _member(_load(where, path, setting), name, where, setting)


def _require_allowed(where: str, path: str, setting: str) -> None:
    """Raise `ConfigError` if the operator of this process named what it may import, and ``where`` is not below it."""
    allowed = os.environ.get(ALLOW_VARIABLE)
    if allowed is None or any(_is_below(where, entry) for entry in allowed.split(os.pathsep)):
        return
    raise ConfigError(f"{setting} is {path!r}, but this node may only import code from {allowed} (--allow-code)")


def require_program(program: str, *, setting: str) -> None:
    """
    Refuse a program that this process may not run, on the word of its operator.

    Raises:
        ConfigError: The operator named what code may be imported, and the program is in none of these folders.
    """
    allowed = os.environ.get(ALLOW_VARIABLE)
    where = Path(shutil.which(program) or program)
    if allowed is None or any(
        where.resolve().is_relative_to(Path(entry).resolve()) for entry in allowed.split(os.pathsep)
    ):
        return
    raise ConfigError(f"{setting} is {program!r}, but this node may only run code from {allowed} (--allow-code)")


def _is_below(where: str, entry: str) -> bool:
    if where.endswith(".py"):
        return Path(where).resolve().is_relative_to(Path(entry).resolve())
    return where == entry or where.startswith(f"{entry}.")


def settings_of(
    function: Callable[..., Any],
    *,
    takes: str,
    known: Collection[str],
    path: str,
    setting: str,
    options: Collection[str] = (),
) -> Mapping[str, Any]:
    """
    Settings that a function of one positional argument reads: keyword-only arguments with the name of a setting.

    Its other keyword-only arguments are options of its own. The caller binds those that are given.

    Args:
        takes: Name of the positional argument, for error messages.
        known: Names of all existing settings.
        path: Name of the function in the configuration, for error messages.
        setting: Full key of the setting, for error messages; its options are the table ``<setting>_options``.
        options: Names of the options that are given.

    Returns:
        Default of each setting by its name; `REQUIRED` without a default.

    Raises:
        ConfigError: The function does not have exactly one positional argument, an option is not an argument of it or
            is the name of a setting, or an argument without a default is neither a setting nor a given option.
    """
    shape = f"{setting} {path!r} must be def {path.rpartition(':')[2]}({takes}, *, <settings and options>)"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError as error:  # written in C
        raise ConfigError(f"{shape}, but it has no signature; wrap it in a Python function") from error
    if not parameters:
        raise ConfigError(f"{shape}, but it takes no argument")
    first, *others = parameters
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigError(f"{shape}, but its first argument is {str(first)!r}")
    for parameter in others:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise ConfigError(f"{shape}, but {str(parameter)!r} is not keyword-only")
        if parameter.default is REQUIRED and parameter.name not in {*known, *options}:
            raise ConfigError(
                f"{setting} {path!r} needs {parameter.name!r}, which is neither a setting nor given in "
                f"{setting}_options; set {setting}_options.{parameter.name}, or give it a default"
            )
    _check_options(
        options, [parameter.name for parameter in others if parameter.name not in known], known, path, setting
    )
    return {parameter.name: parameter.default for parameter in others if parameter.name in known}


def _check_options(
    given: Collection[str], options: Collection[str], known: Collection[str], path: str, setting: str
) -> None:
    for name in given:
        if name in known:
            section = setting.rpartition(".")[0]
            raise ConfigError(f"{setting}_options.{name} is the name of a setting; set {section}.{name} instead")
        if name not in options:
            raise ConfigError(f"{setting}_options.{name} is not a keyword argument of {path!r}: {hint(name, options)}")


@contextmanager
def blamed(path: str, *, setting: str, ours: str) -> Iterator[None]:
    """
    Turn an exception of a custom function, called in the context, into a `ConfigError` that names the function.

    Args:
        path: Name of the function in the configuration.
        setting: Full key of the setting.
        ours: File of the caller, which is skipped when the place of the error is searched.

    Raises:
        ConfigError: The function raised something other than an `AsyncrlError`.
    """
    try:
        yield
    except AsyncrlError:
        raise
    except Exception as error:  # custom code may raise anything
        raise ConfigError(f"{setting} {path!r} raised {describe(error, ours, __file__)}") from error


def describe(error: BaseException, *ours: str) -> str:
    """
    One line for an exception with its notes, such as ``ValueError: no number (score.py:12)``.

    The place is the innermost line in the outermost file that is not ours: the innermost line of all is often deep
    inside a library.

    Args:
        ours: Files and folders whose frames are skipped.
    """
    name, text = shown(type(error).__name__, MAX_CHARS), _text_of(error)
    what = f"{name}: {text}" if text else name
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return what  # its text has file and line
    place = _place(error, ours)
    return f"{what} ({shown(place, MAX_CHARS)})" if place else what


def _text_of(error: BaseException) -> str:
    """At most `MAX_CHARS` characters on one line; custom exceptions may give no text, or gigabytes of it."""
    try:
        text = "; ".join([str(error)[: 2 * MAX_CHARS], *getattr(error, "__notes__", ())])
    except Exception as second:  # noqa: BLE001  custom code may raise anything
        return f"(its text cannot be shown: __str__ raised {type(second).__name__[:MAX_CHARS]})"
    return escaped(" ".join(text.split()))[:MAX_CHARS]


def hint(name: str, known: Collection[str]) -> str:
    """``did you mean 'gamma'?`` for the nearest known name, else all known names."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    return f"expected one of: {', '.join(known)}" if known else "there are none"


def _load(where: str, path: str, setting: str) -> ModuleType:
    is_file = where.endswith(".py") or "/" in where
    if is_file and not Path(where).is_file():
        meant = did_you_mean(Path(where), lambda path: path.suffix == ".py")
        if not meant and not Path(where).is_absolute():
            meant = "; paths are relative to the folder that asyncrl is run in"
        raise ConfigError(f"{setting} is {path!r}, but there is no file {Path(where).absolute()}{meant}")
    try:
        return _run_file(Path(where).resolve()) if is_file else _import(where)
    except (Exception, SystemExit) as error:  # custom code may raise anything when it is imported
        why = describe(error, __file__, importlib.__file__)
        raise ConfigError(f"{setting} is {path!r}, but {where} cannot be imported: {why}") from error


def _import(module: str) -> ModuleType:
    """Import an installed module, or else one of the working directory, whose files hide no library."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(module)


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module with a unique name, or return the module of an earlier run."""
    name = f"asyncrl_plug_in_{path.stem}_{sha256(bytes(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file: its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # a partly initialized module must not be found by the next call
        raise
    return module


def _member(module: ModuleType, name: str, where: str, setting: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{setting}: {where} has no function {name!r}: {hint(name, known)}")
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} in {where} is {repr(found)[:80]}, expected a function")
    return found  # type: ignore[no-any-return]


def _place(error: BaseException, ours: tuple[str, ...]) -> str:
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(("<frozen ", *ours))
    ]
    if not frames:
        return ""
    culprit = frames[0][0]
    line = next(line for file, line in reversed(frames) if file == culprit)
    return f"{culprit[-MAX_CHARS:]}:{line}"
