"""Pages for readers of the code name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = [path.name for path in (ROOT / "asyncrl").iterdir() if path.is_dir()]
FIRST = "|".join(["asyncrl", "bench", "bin", "conf", "docs", "examples", "tests", *ROOMS])
PATH = re.compile(rf"(?<![\w./~-])(?:{FIRST})/[\w./-]*(?:\.(?:py|md|toml|json|yml)|/)(?![\w*{{])")
"""Files and folders below the repository, its package, or a room of it, by their first folder."""
FOLDERS = [ROOT, ROOT / "asyncrl", *(ROOT / "asyncrl").iterdir()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {found for found in PATH.findall(page.read_text(encoding="utf-8")) if "NAME" not in found}
    assert {path for path in named if not any(folder.joinpath(path).exists() for folder in FOLDERS)} == set()
