"""
Functions that a person wrote, named in the configuration by where they are.

    "file.py:name" ──────────┐
    "package.module:name" ───┴─ load_function ─▶ function ─ settings_of ─▶ the settings it reads, and their defaults
                                                     └──── raised? ─ describe ─▶ one line that says where to look

A file is run once a process, however many functions are taken from it: they share what it keeps in its module.
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from asyncrl.errors import AsyncrlError, ConfigError

MAX_CHARS = 400
"""Of an exception's own text: some quote their whole input."""
REQUIRED: Final = inspect.Parameter.empty
"""In the place of a default: the setting must be given."""


def is_path(name: str) -> bool:
    """Whether it says where a function is, and is no built-in name."""
    return ":" in name


def load_function(path: str, *, setting: str) -> Callable[..., Any]:
    """
    The function that a configuration names.

    Args:
        path: ``file.py:name`` (from the working directory), or ``package.module:name``.
        setting: Full key it was given under, such as ``reward.function``; errors begin with it.

    Raises:
        ConfigError: There is no such file or function, or it cannot be imported.
    """
    where, _, name = path.rpartition(":")
    if not where or not name:
        raise ConfigError(f"{setting} is {path!r}, expected path/to/file.py:name or package.module:name")
    return _member(_load(where, path, setting), name, where, setting)


def settings_of(
    function: Callable[..., Any], *, takes: str, known: Collection[str], path: str, setting: str
) -> Mapping[str, Any]:
    """
    The settings that a function of one argument reads: its keyword-only arguments, by name.

    Args:
        function: As loaded.
        takes: What the one argument is called, in the plural; for the error only.
        known: Names of all settings there are.
        path: What the configuration calls the function; for errors only.
        setting: Full key it was given under; for errors only.

    Returns:
        Default of each, or `REQUIRED`.

    Raises:
        ConfigError: It takes more than one argument or none, or a setting that does not exist.
    """
    shape = f"{setting} {path!r} must be def {path.rpartition(':')[2]}({takes}, *, <settings>)"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError as error:  # written in C
        raise ConfigError(f"{shape}, but has no signature to be looked at; wrap it in a Python function") from error
    if not parameters:
        raise ConfigError(f"{shape}, but it takes nothing")
    first, *others = parameters
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigError(f"{shape}, but its first argument is {str(first)!r}")
    for parameter in others:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise ConfigError(f"{shape}, but {str(parameter)!r} is not behind the star")
        if parameter.name not in known:
            raise ConfigError(f"{shape}, but there is no setting {parameter.name!r}: {hint(parameter.name, known)}")
    return {parameter.name: parameter.default for parameter in others}


@contextmanager
def blamed(path: str, *, setting: str, ours: str) -> Iterator[None]:
    """
    A call of a person's function: what it raises is a mistake of the configuration, and says which function it was.

    Args:
        path: What the configuration calls it.
        setting: Full key it was given under.
        ours: File of the caller, whose frames are not the culprit's.

    Raises:
        ConfigError: It raised something that is none of our own errors.
    """
    try:
        yield
    except AsyncrlError:
        raise
    except Exception as error:  # it is a person's code, which may raise anything
        raise ConfigError(f"{setting} {path!r} raised {describe(error, ours, __file__)}") from error


def describe(error: BaseException, *ours: str) -> str:
    """
    ``ValueError: no number (score.py:12)``: type, message, and the innermost line of the file that called for it.

    Not the innermost line of all: that is often deep inside a library, where nobody can change anything.

    Args:
        error: As caught.
        ours: Files and folders whose frames are not the culprit's.
    """
    text = " ".join(str(error).encode("utf-8", "replace").decode().split())
    what = f"{type(error).__name__}: {text[:MAX_CHARS]}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return what  # its text names file and line already
    place = _place(error, ours)
    return f"{what} ({place})" if place else what


def hint(name: str, known: Collection[str]) -> str:
    """``did you mean 'gamma'?``, or what there is."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    return f"expected one of: {', '.join(known)}" if known else "there is none at all"


def _load(where: str, path: str, setting: str) -> ModuleType:
    """The module a function lives in, from its file or its dotted name."""
    is_file = where.endswith(".py") or "/" in where
    if is_file and not Path(where).is_file():
        raise ConfigError(f"{setting} is {path!r}, but there is no file {Path(where).absolute()}")
    try:
        return _run_file(Path(where).resolve()) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # importing runs a person's code, which may raise anything
        why = describe(error, __file__, importlib.__file__)
        raise ConfigError(f"{setting} is {path!r}, but {where} cannot be imported: {why}") from error


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module whose name collides with no other, or find it as it was run before."""
    name = f"asyncrl_plug_in_{path.stem}_{sha256(bytes(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file: its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # half a module would be found the next time
        raise
    return module


def _member(module: ModuleType, name: str, where: str, setting: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{setting}: {where} has no function {name!r}: {hint(name, known)}")
    if not callable(found) or isinstance(found, type):
        raise ConfigError(f"{setting}: {name!r} in {where} is {_shown(found)}, expected a function")
    return found  # type: ignore[no-any-return]


def _shown(value: object) -> str:
    """Its ``repr``, short enough for a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
    return f"{culprit}:{line}"
