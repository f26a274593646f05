"""The site builds, with the pages that are made from the package, and fetches nothing."""

import re
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


def test_the_first_page_lists_every_page_in_the_order_of_the_site() -> None:
    site, first = (
        (ROOT / "mkdocs.yml").read_text(encoding="utf-8"),
        (ROOT / "docs" / "index.md").read_text(encoding="utf-8"),
    )
    assert re.findall(r": (\S+\.md)", site)[1:] == re.findall(r"^\| \[[^\]]+\]\((\S+\.md)\)", first, re.MULTILINE)
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(re.findall(r": (\S+\.md)", site))
