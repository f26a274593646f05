"""
Verdict on a translated launch: what ``asyncrl run --dry-run`` will say where model and data are.

    settings     the check of a run file
    model        its files, if they are here; else transformers' defaults of the type that its name tells
    pictures     whether the rows have some, and the model reads them
    functions    the user's own are looked for in their files, of which nothing is run
    engine       vLLM's arguments, if it is installed

What is not here and cannot be told from a name is *not known*. Devices, memory and trackers are those of the machine.
"""

import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.model.weights import CONFIG, read_config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, DataError
from asyncrl.plug_in import is_path
from asyncrl.runtime.check_architecture import examine, refuse_certain
from asyncrl.runtime.check_type import check_type
from asyncrl.runtime.checks import CHECKS, check_engine
from asyncrl.runtime.machine import INSTALL, TRAIN, missing_packages
from asyncrl.tools.published_data import has_pictures
from asyncrl.tools.published_models import model_type_of
from asyncrl.tools.verl.translate import UNRESOLVED, Translation
from asyncrl.vision.settings import FAMILIES

Verdict = Literal["runs", "runs with substitutions", "cannot", "not known"]


class ScriptVerdict(Struct, frozen=True):
    """Verdict on a translation, with sentences about what the checks found and about what they could not check."""

    verdict: Verdict
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Sentences for what could not be checked, and decides the verdict if there is no problem."""
    unread: tuple[str, ...] = ()
    """Sentences for files that the run needs and that are not here."""


def judge(translation: Translation, of_type: Callable[[Config, str, str], str] = check_type) -> ScriptVerdict:
    """
    Verdict by the account of a launch and by the checks of its run file. Takes seconds.

    ``of_type`` is `check_type`, or does the same in this process.
    """
    raw: dict[str, Any] = tomllib.loads(translation.toml)
    if translation.missing:
        return ScriptVerdict("cannot")
    try:
        run = {name: value for name, value in raw.get("run", {}).items() if f"run.{name}" != UNRESOLVED}
        config = decode({**raw, "run": run})
    except ConfigError as error:
        return ScriptVerdict("cannot", (f"the run file does not pass the check of asyncrl run: {error}",))
    unread = tuple(f"not read: {name} is not here" for name in _absent(config))
    problems: list[str] = []
    unknown: list[str] = []
    for check in (_pictures, _functions, _engine, partial(_model, of_type)):
        try:
            unknown += filter(None, [check(config, raw)])
        except (ConfigError, DataError) as error:
            problems.append(f"asyncrl run would refuse the run file: {error}")
    verdict: Verdict = translation.verdict
    if problems:
        verdict = "cannot"
    elif unknown and verdict != "cannot":
        verdict = "not known"
    return ScriptVerdict(verdict, tuple(problems), tuple(unknown), unread)


# ── checks ────────────────────────────────────────────────────────────────────────────────────
# Each returns a sentence for what it cannot know, or nothing, and raises `ConfigError` for what cannot work.


def _pictures(config: Config, raw: Mapping[str, Any]) -> str:
    kind = _kind(config.model.path)
    if kind and kind not in FAMILIES and has_pictures(raw["data"]):
        raise ConfigError(
            f"the rows have pictures, and models of type {kind!r} read none here; give a model of one of the types "
            f"{', '.join(FAMILIES)}, or rows without pictures"
        )
    return ""


def _model(of_type: Callable[[Config, str, str], str], config: Config, _: Mapping[str, Any]) -> str:
    paths = list(filter(None, [config.model.path, config.critic.path]))
    if missing := missing_packages(TRAIN):
        return f"whether the trainer can compute {paths[0]}: {', '.join(missing)} not installed here ({INSTALL})"
    if _is_here(config.model.path):
        CHECKS["model"](config, lambda _: None)
        refuse_certain(examine(config), lambda _: None)
        return ""
    if unnamed := next((path for path in paths if not _kind(path)), ""):
        return f"the type of the model {unnamed}: no name of a published model is in it; asyncrl run --dry-run knows it"
    return of_type(config, _kind(config.model.path), _kind(config.critic.path))


def _kind(path: str) -> str:
    """``model_type`` of a model by its config.json, or by its name; empty if neither tells, as for no model."""
    return str(read_config(Path(path)).get("model_type")) if _is_here(path) else model_type_of(path)


def _is_here(path: str) -> bool:
    return (Path(path) / CONFIG).is_file()


def _engine(config: Config, _: Mapping[str, Any]) -> str:
    if find_spec(config.rollout.engine):
        check_engine(config, config.trainer.device)
    return ""


# ── functions ─────────────────────────────────────────────────────────────────────────────────


def _files(config: Config) -> dict[str, str]:
    """Names of the user's reward functions by their files."""
    named = [config.reward.function, *(part.function for part in config.reward.parts)]
    pairs = [name.rpartition(":") for name in named if is_path(name)]
    return {file: function for file, _, function in pairs if file.endswith(".py")}


def _absent(config: Config) -> Iterator[str]:
    yield from (f"{file}, which has the reward," for file in _files(config) if not Path(file).is_file())


def _functions(config: Config, _: Mapping[str, Any]) -> str:
    for file, function in _files(config).items():
        if not Path(file).is_file():
            continue
        try:
            tree = ast.parse(Path(file).read_bytes(), file)
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"reward.function: {file} is no file of Python: {error}; correct it") from error
        names, modules = set(_defined(tree)), set(_imported(tree))
        if function not in names and "*" not in names:
            raise ConfigError(f"reward.function: {file} defines no {function!r}; name one of its functions")
        if absent := sorted(name for name in modules if find_spec(name) is None):
            return f"whether {file} can be imported: {', '.join(absent)} not installed here"
    return ""


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names at the top level of a file; ``*`` if it imports all of another's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _imported(tree: ast.Module) -> Iterator[str]:
    """Packages that the file imports at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
