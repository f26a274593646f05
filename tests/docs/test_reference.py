"""The site builds, with the pages that are made from the package, and fetches nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow("builds the whole site")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    for page in (tmp_path / "site").glob("*.html"):
        assert 'src="http' not in page.read_text(encoding="utf-8"), page.name
        assert "fonts.googleapis" not in page.read_text(encoding="utf-8"), page.name
