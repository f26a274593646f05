"""Every setting with its default and the documentation under its field in `asyncrl.config.sections`."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from asyncrl.config import sections
from asyncrl.config.sections import Config, Section


class Meaning(Struct, frozen=True, kw_only=True):
    key: str
    """Full key, such as ``schedule.staleness``."""
    default: Any = None
    is_required: bool = False
    """It has no default."""
    text: str
    """Documentation, one paragraph."""


@cache
def meanings() -> dict[str, Meaning]:
    """Every setting of a run file by its full key, in the order of the sections."""
    tree = ast.parse(inspect.getsource(sections))
    texts = {node.name: dict(_docstrings(node)) for node in tree.body if isinstance(node, ast.ClassDef)}
    return {meaning.key: meaning for meaning in _of(Config, "", texts)}


def _of(section: type[Section], where: str, texts: dict[str, dict[str, str]]) -> Iterator[Meaning]:
    hints = get_type_hints(section)
    for field in msgspec.structs.fields(section):
        key, kind = f"{where}{field.name}", hints[field.name]
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _of(kind, f"{key}.", texts)
            continue
        default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
        required = default is NODEFAULT
        yield Meaning(
            key=key,
            default=None if required else default,
            is_required=required,
            text=texts[section.__name__].get(field.name, ""),
        )


def _docstrings(section: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, following in zip(section.body, [*section.body[1:], None], strict=True):
        match field, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, " ".join(text.split())
