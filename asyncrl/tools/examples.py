"""
`asyncrl example`: copies the run files, service files, programs and pages that come with asyncrl.

    asyncrl/shipped/conf/hidden-sums.toml      ─▶ conf/hidden-sums.toml
      function = "examples/hidden_sums.py:Boxes" ─▶ examples/hidden_sums.py

They keep the paths of asyncrl's repository, so that the commands in their comments, and the paths in them, are right.
"""

import ast
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from textwrap import shorten
from typing import get_args

import asyncrl
from asyncrl import errors
from asyncrl.config.meanings import Meaning, meanings, section_meanings, value_in_words
from asyncrl.errors import ConfigError
from asyncrl.messages.codec import Message
from asyncrl.messages.wire import MESSAGES, PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.plug_in import hint
from asyncrl.records.metrics import METRICS, Metric
from asyncrl.records.step_keys import STEP_KEYS, Subject

# ── reference ─────────────────────────────────────────────────────────────────────────────────
# Pages of the documentation that are made from the installed package: for the site, and for `asyncrl example docs`.
#
#     config/meanings.py         ─▶ configuration.md      each setting: type, default, meaning
#     raise XError(f"...")       ─▶ errors.md             each message: the error, its exit code, the module
#     records/metrics.py         ─▶ metrics-table.md      each metric: its type, labels and meaning
#     @sent(by=..., to=...)      ─▶ messages.md           each message: its receiver, its senders, its meaning

PACKAGE = Path(asyncrl.__file__).parent


def pages() -> dict[str, str]:
    """The pages by their names in the folder of the documentation."""
    return {
        "configuration.md": configuration(),
        "errors.md": error_page(),
        "metrics-table.md": metrics_page(),
        "messages.md": message_page(),
    }


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
class ErrorExample:
    """One sentence that asyncrl may end with."""

    text: str
    error: str
    module: str


def messages(package: Path) -> list[ErrorExample]:
    """Every message of an error raised in the package, with ``…`` for its variable parts; sorted."""
    found = set()
    for path in package.rglob("*.py"):
        module = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=error), args=[first, *_])) if hasattr(errors, error):
                    if text := _template(first):
                        found.add(ErrorExample(text, error, module))
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
    kinds = [getattr(errors, name) for name in sorted({one.error for one in found} | {"AsyncrlError"})]
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
        *(f"| `{kind.__name__}` | {kind.exit_code} | {_first_line(kind)} |" for kind in kinds),
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


def _first_line(kind: type) -> str:
    return _markdown((kind.__doc__ or "").strip().splitlines()[0])


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


# ── metrics ─────────────────────────────────────────────────────────────────────────────────

SUBJECTS: dict[Subject, str] = {
    "step": "The step",
    "batch": "Its batch, as it was sampled",
    "pace": "Time",
    "update": "Its updates",
    "policies": "The policy beside others",
    "critic": "The value model",
    "devices": "Shared devices",
}
"""Heading of the keys of each subject."""
OWNERS = {
    "process": "Every process",
    "broker": "Broker",
    "rollout": "Rollout",
    "reward": "Reward",
    "model": "Rollout and reward, for each of `[models]` that their code asks",
    "trainer": "Trainer",
    "spool": "Spool, in the broker's process or its own",
}
"""Heading of the metrics of each owner."""


def metrics_page() -> str:
    """The page about every metric of a step, and every one that a process exposes to Prometheus."""
    lines = [
        "# Metrics by name",
        "",
        "## Of a step: the keys of `metrics.jsonl`",
        "",
        "A line has those that apply to its run; [trackers](trackers.md) get them as `train/<key>`. A loss of your own",
        "may add others. Of a step of several updates, counts are added up, maxima are the highest, and all else is",
        "the mean of the updates, each under the weights before it.",
    ]
    for subject, heading in SUBJECTS.items():
        lines += ["", f"### {heading}", "", "| key | meaning |", "|---|---|"]
        lines += [f"| `{key.name}` | {_cell(key.meaning)} |" for key in STEP_KEYS.values() if key.subject == subject]
    lines += [
        "",
        "## Of a process, for Prometheus",
        "",
        "[Metrics and health](metrics.md) says how to turn them on. Each sample has the labels `role`, `node` of its",
        "process too. Label values come from the vocabularies given here or are names of the run file, never texts of",
        "errors.",
    ]
    for owner, heading in OWNERS.items():
        lines += ["", f"### {heading}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [_metric(metric) for metric in METRICS.values() if metric.owner == owner]
    return "\n".join(lines) + "\n"


def _metric(metric: Metric) -> str:
    labels = "; ".join(f"`{label}`: {', '.join(values) or 'any'}" for label, values in metric.labels.items())
    return f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.meaning)} |"


# ── messages between processes ──────────────────────────────────────────────────────────────


def message_page() -> str:
    """The page about every message between the processes of a run."""
    lines = [
        "# Messages",
        "",
        "Everything that the processes of a run say to each other. The broker and spools refuse, and count, what is",
        f"not listed for its sender. This is protocol {PROTOCOL}; all processes of a run speak the same.",
        "[Life of a trajectory](life-of-a-trajectory.md) has the most important ones in order.",
    ]
    for receiver in get_args(Role):
        lines += ["", f"## To the {receiver}", "", "| message | from | meaning |", "|---|---|---|"]
        lines += [_message(kind, receiver) for kind in MESSAGES if receiver in kind.senders]
    return "\n".join(lines) + "\n"


def _message(kind: type[Message], receiver: Role) -> str:
    senders = ", ".join(role for role in get_args(Role) if role in kind.senders[receiver])
    meaning = " ".join((kind.__doc__ or "").split())
    return f"| `{kind.__name__}` | {senders} | {_cell(meaning)} |"


# ── examples ──────────────────────────────────────────────────────────────────────────────────

SHIPPED = PACKAGE / "shipped"
"""Package data: links to conf/, docs/ and examples/ in the repository, copies of them in a wheel."""
FOLDERS = {
    "conf/container": "Image of every role, for Docker and Podman",
    "conf/grafana": "Dashboard of the metrics",
    "conf/kubernetes": "One run on Kubernetes, without an operator",
    "conf/prometheus": "Scraping of the metrics, and alerts",
    "conf/slurm": "One run as a job of Slurm",
    "conf/supervisord": "Roles of a run on one machine under supervisord",
    "conf/systemd": "Each role of a run as a service of systemd",
    "docs": "All pages as Markdown; begin with docs/index.md",
    "examples/agents": "Agent programs that use OpenAI's client, OpenEnv and verifiers",
}
"""Folders that are copied as a whole, each with its description."""
GROUPS = {
    "run files": r"conf/[^/]+\.toml",
    "recipes: run files of published runs, for GPUs and NPUs": r"conf/recipes/.*",
    "plans, for asyncrl plan": r"conf/plan/.*",
    "programs": r"examples/.*|.*\.py",
    "services and monitoring": r"conf/[^/]+/",
    "documentation": r"docs/",
}
"""Headings of the list, each with the paths under it."""
CLAUSE_END = re.compile(r"[,:] | \(| instead ")
WIDTH = 100
"""Columns of the list."""
MENTIONED = re.compile(r"\b(?:conf|examples)/[\w./-]+\.\w+")
COMMAND = re.compile(r"^# {3,5}((?:\.venv/bin/)?asyncrl .*)$", re.MULTILINE)


def names() -> list[str]:
    """Paths of all examples, relative to the folder they are copied into; folders end in ``/``."""
    files = (path.relative_to(SHIPPED).as_posix() for path in _files(SHIPPED))
    folders = [f"{folder}/" for folder in FOLDERS]
    return sorted({next((folder for folder in folders if file.startswith(folder)), file) for file in files})


def describe(name: str) -> str:
    """First sentence of an example's opening comment or docstring; of a folder, that of `FOLDERS`."""
    if name.endswith("/"):
        return FOLDERS[name.rstrip("/")]
    lines = [line.strip('#" ') for line in (SHIPPED / name).read_text(encoding="utf-8").strip('"\n').splitlines()]
    opening = " ".join(takewhile(bool, lines))
    return re.split(r"(?<=\w)(?:[.] |[.:]$)", opening, maxsplit=1)[0]


def listing() -> Iterator[str]:
    """All examples by the names that `find` takes, in groups, one line each."""
    for heading, pattern in GROUPS.items():
        yield heading
        found = [name for name in names() if re.fullmatch(pattern, name)]
        width = max(len(Path(name).stem) for name in found)
        for name in found:
            yield f"  {Path(name).stem:<{width}}  {_clauses(describe(name), WIDTH - width - 4)}"
        yield ""
    yield "asyncrl example NAME copies one, with the files that it uses"


def find(wanted: str) -> str:
    """The example called ``wanted``: a path, or its last part, with or without suffix; raises `ConfigError`."""
    known = names()
    found = [name for name in known if wanted.strip("/") in (name.strip("/"), Path(name).name, Path(name).stem)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"the example {wanted!r} may be {' or '.join(found)}: give the whole path")
    short = [Path(name).stem for name in known]
    raise ConfigError(f"there is no example {wanted!r}: {hint(wanted, short)}")


def copy(name: str, folder: Path) -> dict[Path, bool]:
    """
    Copy an example, with the files it uses, to the same paths below ``folder``; an equal file there is left alone.

    Returns:
        The files, each with True if it was copied.

    Raises:
        ConfigError: A file that differs from the example is in its place; then nothing is copied.
    """
    contents = {folder / file: content for file, content in _contents(name).items()}
    for target, content in contents.items():
        if target.exists() and (not target.is_file() or target.read_bytes() != content):
            raise ConfigError(f"{target} exists and is different: move it away, or give another folder with --to")
    copied = {target: not target.exists() for target in contents}
    for target in (target for target, is_copied in copied.items() if is_copied):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents[target])
        if (source := SHIPPED / target.relative_to(folder)).exists():
            shutil.copymode(source, target)
    return copied


def commands(name: str) -> Sequence[str]:
    """Commands in the opening comment of a run file, as they are typed where asyncrl is on the PATH."""
    if not name.endswith(".toml"):
        return []
    head, _, _ = (SHIPPED / name).read_text(encoding="utf-8").partition("\n[")
    found = COMMAND.findall(re.sub(r"\\\n#\s+", "", head))
    return [re.split(r"\s{2,}[#(]", command.removeprefix(".venv/bin/"))[0].rstrip() for command in found]


def _clauses(text: str, room: int) -> str:
    """The first clauses of a sentence that fit into ``room`` characters, without a part of a bracket."""
    while (len(text) > room or text.count("(") > text.count(")")) and (ends := [*CLAUSE_END.finditer(text)]):
        text = text[: ends[-1].start()]
    return shorten(text, room, placeholder=" …")


def _contents(name: str) -> dict[str, bytes]:
    """Contents of the files of an example; of the documentation, with the pages that are made from the package."""
    contents = {file: (SHIPPED / file).read_bytes() for file in _with_uses(name)}
    if name != "docs/":
        return contents
    texts = {file: content.decode() for file, content in contents.items() if file.endswith(".md")}
    texts |= {f"docs/{page}": text for page, text in pages().items()}
    return {file: without_links_elsewhere(text).encode() for file, text in texts.items()}


def _with_uses(name: str) -> list[str]:
    """The files of an example, and those that its settings name."""
    if name.endswith("/"):
        return [path.relative_to(SHIPPED).as_posix() for path in _files(SHIPPED / name)]
    settings = re.sub(r"^#.*$", "", (SHIPPED / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    used = MENTIONED.findall(settings) if name.endswith(".toml") else []
    return [name, *(file for file in dict.fromkeys(used) if (SHIPPED / file).is_file())]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            yield from _files(path)
        elif path.is_file():
            yield path
