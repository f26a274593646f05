"""The names that a host imports from asyncrl."""

from importlib.metadata import version
from pathlib import Path

import pytest

import asyncrl

TYPED = Path(asyncrl.__file__).with_name("py.typed")


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_every_public_name_is_callable(name: str) -> None:
    assert callable(getattr(asyncrl, name))
    assert name in dir(asyncrl)


def test_type_checkers_see_the_public_names() -> None:
    source = Path(asyncrl.__file__).read_text(encoding="utf-8")
    declared = {line.rsplit(" as ", 1)[1].split()[0] for line in source.splitlines() if line.startswith("    from ")}
    assert declared == set(asyncrl.__all__)
    assert TYPED.is_file()


def test_the_version_is_that_of_the_distribution() -> None:
    assert asyncrl.__version__ == version("asyncrl")


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'asyncrl' has no attribute 'rnu'"):
        _ = asyncrl.rnu
