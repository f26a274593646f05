"""
Records which module reads each setting, in every process of a run.

    ASYNCRL_READS=folder, and hook/ on PYTHONPATH ─▶ sitecustomize ─▶ `install` ─▶ folder/<pid>: "trainer.lr module" ...

Reads by the configuration's own checks do not count, nor do copies of whole sections.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.config import sections
from asyncrl.config.config import Config
from asyncrl.config.sections.section import Section

HOOK = Path(__file__).parent / "hook"
VARIABLE = "ASYNCRL_READS"


def environment(folders: Mapping[str, Path]) -> dict[str, str]:
    """Variables with which processes record, below the folder of each variable: reads by `VARIABLE`."""
    paths = [str(HOOK), str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {name: str(folder) for name, folder in folders.items()} | {"PYTHONPATH": os.pathsep.join(paths)}


def reads(folder: Path) -> dict[str, set[str]]:
    """Modules that read each setting, by all processes."""
    found = defaultdict(set)
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            key, module = line.split()
            found[key].add(module)
    return dict(found)


def install(folder: Path) -> None:
    """Record reads of this process from here on. A process that is killed has recorded what it read."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / str(os.getpid())).open("a", buffering=1, encoding="utf-8")
    seen: set[tuple[str, str]] = set()

    def record(key: str) -> None:
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals["__name__"].startswith(f"{sections.__name__}."):  # A section's property.
            frame = frame.f_back
        read = (key, frame.f_globals["__name__"])
        if read not in seen:
            seen.add(read)
            file.write(" ".join(read) + "\n")

    for path, section in _sections(Config, ""):
        for name in section.__struct_fields__:
            setattr(section, name, _recorded(f"{path}{name}", section.__dict__[name], record))


def _sections(section: type[Section], path: str) -> list[tuple[str, type[Section]]]:
    """Each section with the prefix of its keys."""
    found = [(path, section)]
    for name, kind in section.__annotations__.items():
        if isinstance(kind, type) and issubclass(kind, Section):
            found += _sections(kind, f"{path}{name}.")
    return found


def _recorded(key: str, descriptor: Any, record: Any) -> property:
    def read(section: Section) -> Any:
        record(key)
        return descriptor.__get__(section)

    return property(read, descriptor.__set__)  # Set while a section is made.
