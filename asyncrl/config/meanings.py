"""Every setting with its type, its default and the documentation under its field in asyncrl/config/sections/."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from asyncrl.config.catalogue import ADVANTAGES, LOSSES
from asyncrl.config.config import Config
from asyncrl.config.correction import PRESETS
from asyncrl.config.engines import ENGINES
from asyncrl.config.sections.section import LIVE, Section
from asyncrl.files.json_lines import toml_value

# ── words ─────────────────────────────────────────────────────────────────────────────────────
# Types, values and texts of settings in words, for the reference and for messages.
#
#     Annotated[int, Meta(ge=1)] | None   ─▶ integer ≥ 1 or unset
#     {"a": [1.5]}                        ─▶ { a = [1.5] }

WORDS = {int: "integer", str: "string", bool: "true or false", float: "number", type(None): "unset", Any: "any value"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
LARGE = 2**53
"""From here on, a bound is written as a power of two."""


def type_in_words(kind: Any) -> str:
    """A type annotation, with its bounds."""
    args = get_args(kind)
    match get_origin(kind):
        case origin if origin is Annotated:
            inner, *extras = args
            limits = [
                f"{sign} {_number(limit)}"
                for extra in extras
                for name, sign in BOUNDS.items()
                if (limit := getattr(extra, name, None)) is not None
            ]
            return " ".join(filter(None, (type_in_words(inner), ", ".join(limits))))
        case origin if origin is Literal:
            return " or ".join(f'"{choice}"' for choice in args)
        case origin if origin in (Union, UnionType):
            return " or ".join(map(type_in_words, args))
        case origin if origin is list:
            return f"list of {type_in_words(args[0])}"
        case origin if origin is dict:
            return f"table of {type_in_words(args[1])}"
    return WORDS.get(kind) or "section"


def value_in_words(value: Any) -> str:
    """A value as it is written in TOML; what TOML does not have, None, is ``unset``."""
    if value is None:
        return "unset"
    return toml_value(msgspec.to_builtins(value)) if value != {} else "{}"


def _number(limit: float) -> str:
    if limit < LARGE:
        return f"{limit:g}"
    power = int(limit).bit_length()
    return f"2^{power} - 1" if limit == 2**power - 1 else str(limit)


# ── meanings ──────────────────────────────────────────────────────────────────────────────────

VERL = re.compile(r" \[([\w.*/, ]+)\](?=[.:]|$)")
"""verl's name for a setting, in the documentation of its field; names in backquotes are others."""

CATALOGUES = {
    "algorithm.advantage": (*ADVANTAGES, "file.py:name"),
    "algorithm.loss": (*LOSSES, "file.py:name"),
    "rollout.engine": (*ENGINES, "file.py:name"),
    "algorithm.correction.preset": ("", *PRESETS),
}
"""Values of the settings that name something of a catalogue."""


class Meaning(Struct, frozen=True, kw_only=True):
    key: str
    """Full key, such as ``schedule.staleness``."""
    kind: str = ""
    """Type and bounds in words, such as ``integer ≥ 1``."""
    default: Any = None
    is_required: bool = False
    """True if the setting has no default."""
    is_live: bool = False
    """True if `asyncrl set` changes the setting while the run goes on."""
    text: str
    """Documentation, one paragraph."""
    items: tuple["Meaning", ...] = ()
    """Settings of each item, if it is a list of tables."""

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0] or self.key  # a table of sections is one itself

    @property
    def verl(self) -> str:
        """verl's name for it; empty if the documentation gives none."""
        found = VERL.search(self.text)
        return found.group(1) if found else ""


@cache
def meanings() -> dict[str, Meaning]:
    """Every setting of a run file by its full key, in the order of the sections."""
    return {meaning.key: meaning for meaning in _of(Config, "")}


def meaning_of(key: str) -> Meaning | None:
    """The meaning of a full key, also of one in a table of sections, such as ``models.judge.url``."""
    if (found := meanings().get(key)) or key.count(".") < 2:
        return found
    table, name = key.partition(".")[0], key.rpartition(".")[2]
    items = meanings()[table].items if table in meanings() else ()
    return next((item for item in items if item.key == f"{table}.{name}"), None)


@cache
def section_meanings() -> dict[str, str]:
    """Documentation of every section and subsection of a run file by its full key; paragraphs are lines."""
    return dict(_sections(Config, ""))


def _sections(section: type[Section], where: str) -> Iterator[tuple[str, str]]:
    for name, kind in get_type_hints(section).items():
        kind = _entry_of(kind) or kind  # noqa: PLW2901
        if _is_section(kind):
            paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
            yield f"{where}{name}", "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
            yield from _sections(kind, f"{where}{name}.")


def _of(section: type[Section], where: str) -> Iterator[Meaning]:
    hints, texts = get_type_hints(section, include_extras=True), dict(_docstrings(section))
    for field in msgspec.structs.fields(section):
        key, kind = f"{where}{field.name}", hints[field.name]
        if _is_section(kind):
            yield from _of(kind, f"{key}.")
            continue
        default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
        required = default is NODEFAULT
        yield Meaning(
            key=key,
            kind=type_in_words(Literal[CATALOGUES[key]] if key in CATALOGUES else kind),
            default=None if required else default,
            is_required=required,
            is_live=LIVE in get_args(kind),
            text=texts.get(field.name, ""),
            items=tuple(each for item in get_args(kind) if _is_section(item) for each in _of(item, f"{key}.")),
        )


def _entry_of(kind: Any) -> type[Section] | None:
    """Section of each entry, if the field is a table of sections."""
    return get_args(kind)[1] if get_origin(kind) is dict and _is_section(get_args(kind)[1]) else None


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _docstrings(section: type[Section]) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    for field, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        match field, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, " ".join(text.split())
