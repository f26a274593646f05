"""
`asyncrl example`: copies the run files, service files, programs and pages that come with asyncrl.

    asyncrl/shipped/conf/hidden-sums.toml      ─▶ conf/hidden-sums.toml
      function = "examples/hidden_sums.py:Boxes" ─▶ examples/hidden_sums.py

They keep the paths of asyncrl's repository, so that the commands in their comments, and the paths in them, are right.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from textwrap import shorten

from asyncrl.cli.start.reference import pages, without_links_elsewhere
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint

SHIPPED = Path(__file__).parents[2] / "shipped"
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
    return sorted({_folder_of(file) or file for file in files})


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
    taken = [target for target, content in contents.items() if target.exists() and _differs(target, content)]
    if taken:
        raise ConfigError(f"{taken[0]} exists and is different: move it away, or give another folder with --to")
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


def _folder_of(file: str) -> str:
    return next((f"{folder}/" for folder in FOLDERS if file.startswith(f"{folder}/")), "")


def _differs(target: Path, content: bytes) -> bool:
    return not target.is_file() or target.read_bytes() != content
