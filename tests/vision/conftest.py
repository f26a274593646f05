"""Model directories with pictures, made once per family."""

from pathlib import Path

import pytest

from tests.conftest import make_vision_model

FAMILIES = ("qwen3_vl", "qwen2_5_vl")


@pytest.fixture(scope="session", params=FAMILIES)
def vision_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_vision_model(path, request.param)
    return path


@pytest.fixture
def qwen3_vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of its own, to damage."""
    path = tmp_path_factory.mktemp("damaged")
    make_vision_model(path)
    return path
