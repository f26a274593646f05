"""
Three pages of the documentation, made from the installed package: for the site, and for `asyncrl example docs`.

    config/meanings.py         ─▶ configuration.md      each setting: type, default, meaning
    raise XError(f"...")       ─▶ errors.md             each message: the error, its exit code, the module
    observe/metrics/table.py   ─▶ metrics-table.md      each metric: its type, labels and meaning
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncrl
from asyncrl import errors
from asyncrl.config.meanings import Meaning, meanings, section_meanings
from asyncrl.config.words import value_in_words
from asyncrl.observe.metrics.table import METRICS, Metric

PACKAGE = Path(asyncrl.__file__).parent


def pages() -> dict[str, str]:
    """The pages by their names in the folder of the documentation."""
    return {"configuration.md": configuration(), "errors.md": error_page(), "metrics-table.md": metrics_page()}


def without_links_elsewhere(page: str) -> str:
    """The page with plain names of files in place of links that lead out of the folder of the documentation."""
    return re.sub(r"\[([^]]+)\]\(\.\./[^)]*\)", r"`\1`", page)


# ── configuration ───────────────────────────────────────────────────────────────────────────


def configuration() -> str:
    """The page about every setting of a run file."""
    lines = [
        "# Configuration",
        "",
        "A run is one TOML file. Values come from the defaults below, then the file, then `--set section.key=value`.",
        "An unknown key is an error with a suggestion. `asyncrl config show FILE` prints every value and its source,",
        "and `asyncrl config explain SECTION` prints the settings of a section as this page has them.",
        "A name in [brackets] is verl's name for the setting. `asyncrl set` changes a setting marked *live* while the",
        "run goes on.",
    ]
    for section, text in section_meanings().items():
        lines += ["", f"## `[{section}]`", "", _markdown(text)]
        if found := [meaning for meaning in meanings().values() if meaning.section == section]:
            lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
            lines += [_row(each, section) for meaning in found for each in (meaning, *meaning.items)]
    return "\n".join(lines) + "\n"


def _row(meaning: Meaning, section: str) -> str:
    name = f"`{meaning.key.removeprefix(f'{section}.')}`" + (" *live*" if meaning.is_live else "")
    default = "required" if meaning.is_required else f"`{_escaped_bars(value_in_words(meaning.default))}`"
    return f"| {name} | {meaning.kind} | {default} | {_cell(meaning.text)} |"


def _cell(text: str) -> str:
    return _escaped_bars(_markdown(text))


def _escaped_bars(text: str) -> str:
    return text.replace("|", "\\|")


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
