"""docs/reference.py: three pages of the documentation are made from the code, and all build without a network."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from asyncrl.config.meanings import meanings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["reference"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_setting_of_a_run_file_is_on_the_page(reference: ModuleType) -> None:
    page = reference.configuration()
    assert "| `steps` | integer ≥ 1 | `60` | Optimizer steps to train, unless `epochs` decides. |" in page
    assert "| `path` | string | required |" in page
    assert "| `lr` *live* |" in page
    assert "| `parts.weight` | number | `1.0` |" in page
    assert page.count("\n| `") == len([each for meaning in meanings().values() for each in (meaning, *meaning.items)])


def test_a_message_is_found_with_its_variable_parts_marked(reference: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('def f(n):\n    raise ConfigError(f"expected {n} rows, " f"got none")\n')
    (message,) = reference.messages(tmp_path)
    assert (message.text, message.error, message.module) == ("expected … rows, got none", "ConfigError", "module.py")


def test_the_page_of_errors_has_the_messages_of_the_package(reference: ModuleType) -> None:
    page = reference.error_page()
    assert "no broker answered at … within … s" in page
    assert "| `ConfigError` | 78 |" in page


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    for page in (tmp_path / "site").glob("*.html"):
        assert 'src="http' not in page.read_text(encoding="utf-8"), page.name
        assert "fonts.googleapis" not in page.read_text(encoding="utf-8"), page.name


def test_every_metric_has_a_row_under_its_owner(reference: ModuleType) -> None:
    page = reference.metrics_page()
    assert {metric.owner for metric in reference.METRICS.values()} == set(reference.OWNERS)
    assert all(page.count(f"| `{name}` | {metric.kind} |") == 1 for name, metric in reference.METRICS.items())
    assert "`stage`: reward, payload | Of these, failures by stage. |" in page
