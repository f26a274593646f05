"""
Generates three pages of the documentation from the installed package, while MkDocs builds the site.

    asyncrl/config/sections.py ─▶ configuration.md      each setting: type, default, meaning
    raise XError(f"...")       ─▶ errors.md             each message: the error, its exit code, the module
    observe/metrics/table.py   ─▶ metrics-table.md      each metric: its type, labels and meaning
"""

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncrl
from asyncrl import errors
from asyncrl.observe.metrics.table import METRICS, Metric

PACKAGE = Path(asyncrl.__file__).parent
SECTIONS = PACKAGE / "config" / "sections.py"
MESSAGES = PACKAGE / "messages.py"
ROOT = "Config"


# ── configuration ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Setting:
    """One field of a section."""

    name: str
    kind: str
    default: str
    meaning: str
    is_live: bool = False
    """True if `asyncrl set` changes it while the run goes on."""


@dataclass(frozen=True)
class Section:
    """One table of a run file."""

    meaning: str
    settings: list[Setting]


def sections(source: str) -> dict[str, Section]:
    """Every section class of a module, by class name."""
    body = ast.parse(source).body
    aliases = _aliases(MESSAGES.read_text(encoding="utf-8")) | _aliases(source)
    return {
        node.name: Section(ast.get_docstring(node) or "", list(_settings(node, aliases)))
        for node in body
        if isinstance(node, ast.ClassDef)
    }


def _aliases(source: str) -> dict[str, str]:
    """Types that a module gives a name, such as ``Count = Annotated[int, Meta(ge=1)]``, in words."""
    found = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                found[name] = _type(value, {})
    return found


def _settings(node: ast.ClassDef, aliases: dict[str, str]) -> Iterator[Setting]:
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            default = ast.unparse(field.value).replace("'", '"').lower() if field.value else "required"
            is_live = any(isinstance(node, ast.Name) and node.id == "LIVE" for node in ast.walk(field.annotation))
            yield Setting(field.target.id, _type(field.annotation, aliases), default, _docstring(following), is_live)


WORDS = {"int": "integer", "str": "string", "bool": "true or false", "float": "number", "None": "unset", "Any": "any"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _type(node: ast.expr, aliases: dict[str, str]) -> str:
    """A type annotation in words: ``Annotated[int, Meta(ge=1)]`` is ``integer ≥ 1``."""
    match node:
        case ast.Name(id=name) | ast.Constant(value=str(name)):
            return aliases.get(name) or WORDS.get(name, name)
        case ast.Constant(value=None):
            return WORDS["None"]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{_type(left, aliases)} or {_type(right, aliases)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            names = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return " or ".join(f'"{name.value!s}"' for name in names if isinstance(name, ast.Constant))
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, ast.Name(id="LIVE")])):
            return _type(kind, aliases)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, ast.Call(keywords=bounds)])):
            limits = [f"{BOUNDS[bound.arg]} {_number(bound.value)}" for bound in bounds if bound.arg in BOUNDS]
            return " ".join([_type(kind, aliases), ", ".join(limits)])
        case ast.Subscript(value=ast.Name(id="list"), slice=kind):
            return f"list of {_type(kind, aliases)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, kind])):
            return f"table of {_type(kind, aliases)}"
    return ast.unparse(node)


def _number(node: ast.expr) -> str:
    return ast.unparse(node).replace(" ** ", "^")


def _docstring(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def configuration() -> str:
    """The page about every setting of a run file."""
    found = sections(SECTIONS.read_text(encoding="utf-8"))
    lines = [
        "# Configuration",
        "",
        "A run is one TOML file. Values come from the defaults below, then the file, then `--set section.key=value`.",
        "An unknown key is an error with a suggestion. `asyncrl config show FILE` prints every value and its source.",
        "A name in [brackets] is verl's name for the setting. `asyncrl set` changes a setting marked *live* while the",
        "run goes on.",
    ]
    for setting in found[ROOT].settings:
        lines += _tables(setting.name, setting.kind, found)
    return "\n".join(lines) + "\n"


def _tables(path: str, kind: str, found: dict[str, Section]) -> list[str]:
    """The table of a section, followed by those of its subsections."""
    section = found[kind]
    plain = [one for one in section.settings if one.kind not in found]
    lines = ["", f"## `[{path}]`", "", _markdown(section.meaning)]
    if plain:
        lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(one) for one in plain]
    for one in section.settings:
        if one.kind in found:
            lines += _tables(f"{path}.{one.name}", one.kind, found)
    return lines


def _row(one: Setting) -> str:
    name = f"`{one.name}`" + (" *live*" if one.is_live else "")
    return f"| {name} | {one.kind} | {_code(one.default)} | {_cell(one.meaning)} |"


def _code(text: str) -> str:
    return text if text == "required" else f"`{text}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|")


def _markdown(text: str) -> str:
    return text.replace("``", "`")


# ── errors ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Message:
    """One sentence that asyncrl may end with."""

    text: str
    error: str
    module: str


def messages(package: Path) -> list[Message]:
    """Every message of an error raised in the package, with ``…`` for its variable parts; sorted."""
    found = set()
    for path in package.rglob("*.py"):
        module = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=error), args=[first, *_])) if hasattr(errors, error):
                    if text := _template(first):
                        found.add(Message(text, error, module))
    return sorted(found, key=lambda one: (one.text.lstrip("… ").lower(), one.error))


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
    return ""


def error_page() -> str:
    """The page about every error message."""
    found = [one for one in messages(PACKAGE) if re.search(r"\w{3}", one.text)]
    lines = [
        "# Errors by message",
        "",
        "asyncrl ends with one sentence that names the cause: what, which one, what was expected, what was found, and",
        "what to do. `…` stands for a variable part. Search this page for a part of the sentence that you see.",
        "",
        "## Kinds and exit codes",
        "",
        "| error | exit code | meaning |",
        "|---|---|---|",
        *(f"| `{kind.__name__}` | {kind.exit_code} | {_first_line(kind)} |" for kind in _kinds(found)),
        "",
        "Codes 78 (configuration) and 74 (damaged file) are not worth a restart; service managers should stop at them.",
        "",
        "## Messages",
        "",
        "| message | error | module |",
        "|---|---|---|",
        *(f"| {_escaped(one.text)} | `{one.error}` | `{one.module}` |" for one in found),
    ]
    return "\n".join(lines) + "\n"


def _kinds(found: Sequence[Message]) -> list[type[errors.AsyncrlError]]:
    names = sorted({one.error for one in found} | {"AsyncrlError"})
    return [getattr(errors, name) for name in names]


def _first_line(kind: type) -> str:
    return _markdown((kind.__doc__ or "").strip().splitlines()[0])


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


# ── metrics ─────────────────────────────────────────────────────────────────────────────────

OWNERS = {
    "process": "Every process",
    "broker": "Broker",
    "rollout": "Rollout",
    "reward": "Reward",
    "trainer": "Trainer",
    "spool": "Spool, in the broker's process or its own",
}
"""Heading of the metrics of each owner."""


def metrics_page() -> str:
    """The page about every metric that a process exposes to Prometheus."""
    lines = [
        "# Metrics by name",
        "",
        "[Metrics and health](metrics.md) says how to turn them on. Each sample has the labels `role`, `node` of its",
        "process too. Label values come from the vocabularies given here, never from texts of errors.",
    ]
    for owner, heading in OWNERS.items():
        lines += ["", f"## {heading}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [_metric(metric) for metric in METRICS.values() if metric.owner == owner]
    return "\n".join(lines) + "\n"


def _metric(metric: Metric) -> str:
    labels = "; ".join(f"`{label}`: {', '.join(values) or 'any'}" for label, values in metric.labels.items())
    return f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.meaning)} |"


# ── MkDocs ──────────────────────────────────────────────────────────────────────────────────


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages to the site."""
    File = importlib.import_module("mkdocs.structure.files").File  # noqa: N806  a class
    pages = {"configuration.md": configuration(), "errors.md": error_page(), "metrics-table.md": metrics_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links into the repository, which the site does not contain, into plain names of files."""
    return re.sub(r"\[([^]]+)\]\(\.\./(?!docs/)[^)]*\)", r"`\1`", markdown)
