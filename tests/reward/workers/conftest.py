"""Functions of a user, in a file."""

from pathlib import Path

import pytest


@pytest.fixture
def functions(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """File with the ``FUNCTIONS`` of the test's module."""
    path = tmp_path / "functions.py"
    path.write_text(request.module.FUNCTIONS)
    return path
