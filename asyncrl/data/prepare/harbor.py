"""
Tasks of Harbor and of Terminal-Bench, a folder each, as rows for containers.

    tasks/fix-git/  instruction.md  task.toml  environment/Dockerfile  tests/test.sh         Harbor
    tasks/fix-git/  task.yaml  Dockerfile  run-tests.sh  tests/                              Terminal-Bench
        └─▶ prompt = the instruction    extra_info: task, container_image, container_build, verifier, verifier_s

An image is named by the digest of its folder, so that each machine builds it once, and again when the folder changes.
`asyncrl.episodes.worker.harbor` plays the rows.

Source:
    The formats as documented at harborframework.com/docs/tasks and harborframework.com/docs/task-difference.
"""

import re
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, convert, field

from asyncrl.data.prepare.published import PublishedDataset, PublishedProblem
from asyncrl.data.table import Row, Rows
from asyncrl.errors import DataError
from asyncrl.files.foreign import parse_toml, parsed, read_bytes, read_text

INSTRUCTION, SETTINGS = "instruction.md", "task.toml"
OLD_SETTINGS = "task.yaml"
VERIFIER_S = 600.0
"""Seconds of a verifier whose task says none."""
MAX_CONTEXT_FILE = 1 << 28
"""Largest file that an image is built from, in bytes."""


class TaskFolders(Rows):
    """`Rows` of the tasks below a folder."""

    def __init__(self, source: Path) -> None:
        self.path = source
        self.columns = ["instruction", "task"]
        self._folders = sorted({file.parent for name in (INSTRUCTION, OLD_SETTINGS) for file in source.rglob(name)})

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, row: int, /) -> Row:
        folder = self._folders[row].absolute()
        try:
            return _harbor(folder) if (folder / INSTRUCTION).is_file() else _terminal_bench(folder)
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    def place(self, row: int, /) -> str:
        return str(self._folders[row])


class _Verifier(Struct):
    timeout_sec: float = VERIFIER_S


class _Environment(Struct):
    docker_image: str = ""


class _Task(Struct):
    """Part of a ``task.toml`` that is read."""

    environment: _Environment = field(default_factory=_Environment)
    verifier: _Verifier = field(default_factory=_Verifier)


class _OldTask(Struct):
    """Part of a ``task.yaml`` that is read."""

    instruction: str
    max_test_timeout_sec: float = VERIFIER_S


def _harbor(folder: Path) -> Row:
    written = parse_toml(read_text(folder / SETTINGS), SETTINGS)
    settings = parsed(lambda: convert(written, _Task), SETTINGS, "the settings of a task")
    image = settings.environment.docker_image
    return {
        "instruction": read_text(folder / INSTRUCTION),
        "verifier": "tests/test.sh",
        "verifier_s": settings.verifier.timeout_sec,
        **({"container_image": image} if image else _built(folder, folder / "environment")),
        "task": str(folder),
    }


def _terminal_bench(folder: Path) -> Row:
    try:
        import yaml  # noqa: PLC0415  of this older format alone
    except ImportError as error:
        raise DataError(f"{OLD_SETTINGS} needs PyYAML: pip install pyyaml ({error})") from error
    written = read_text(folder / OLD_SETTINGS)
    try:
        # Only what is read is looked at: a list may have itself as an item.
        settings = parsed(lambda: convert(yaml.safe_load(written), _OldTask), OLD_SETTINGS, "the settings of a task")
    except yaml.YAMLError as error:
        raise DataError(f"{OLD_SETTINGS} is not YAML: {error}") from error
    return {
        "instruction": settings.instruction,
        "verifier": "run-tests.sh",
        "verifier_s": settings.max_test_timeout_sec,
        **_built(folder, folder),
        "task": str(folder),
    }


def _built(folder: Path, context: Path) -> Row:
    """Name of the image that is built from a folder."""
    if not (context / "Dockerfile").is_file():
        raise DataError(
            f"there is no {context.name}/Dockerfile, and no docker_image: one container is all that is played"
        )
    if services := [path.name for path in context.glob("docker-compose.y*ml") if _num_services(path) > 1]:
        raise DataError(f"{services[0]} has several services, and an episode has one container")
    digest = sha256()
    for path in sorted(path for path in context.rglob("*") if path.is_file()):
        content = read_bytes(path, MAX_CONTEXT_FILE)
        digest.update(f"{path.relative_to(context)}\0{len(content)}\0".encode() + content)
    name = re.sub("[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "task"
    return {"container_image": f"localhost/{name}:{digest.hexdigest()[:16]}", "container_build": str(context)}


def _num_services(path: Path) -> int:
    """Services of a compose file: the keys below ``services:`` with the least indent."""
    found = re.search(r"^services:[^\n]*\n((?:[ \t#][^\n]*\n?|\n)*)", read_text(path), re.MULTILINE)
    keys = re.findall(r"^( +)[\w.-]+:", found[1], re.MULTILINE) if found else []
    return keys.count(min(keys, key=len)) if keys else 0


def _open(source: Path) -> Rows:
    folders = TaskFolders(source)
    if not len(folders):
        raise DataError(
            f"{source} has no folders with {INSTRUCTION} or {OLD_SETTINGS} in them; give the folder of tasks"
        )
    return folders


def _problem(row: Row) -> PublishedProblem:
    task = Path(row["task"])
    if not row["instruction"].strip():
        raise DataError("its instruction is empty")
    if not (task / row["verifier"]).is_file():
        raise DataError(f"there is no {row['verifier']}, which judges it")
    extra = {key: value for key, value in row.items() if key != "instruction"}
    return PublishedProblem(prompt=row["instruction"], answer="", extra=extra)


HARBOR = PublishedDataset(data_source="harbor", problem=_problem, open=_open, ability="terminal")
