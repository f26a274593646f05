"""Every module has a test of the same name, at the same place."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHOUT = {
    "asyncrl/__init__.py": "tests/test_interface.py",
    "asyncrl/__main__.py": "tests/cli/test_main.py",
}
"""Modules whose test has another name."""


def test_every_module_with_code_has_its_test() -> None:
    missing = []
    for path in sorted((ROOT / "asyncrl").rglob("*.py")):
        module = path.relative_to(ROOT)
        if path.name == "__init__.py" and not path.read_text(encoding="utf-8").count("\nimport"):
            continue
        mirror = WITHOUT.get(str(module)) or Path("tests", *module.parts[1:-1], f"test_{module.name}")
        if not (ROOT / mirror).is_file():
            missing.append(f"{module}: expected {mirror}")
    assert missing == []


def test_every_test_below_a_room_has_its_module_or_a_claim_of_its_own() -> None:
    assert all((ROOT / path).is_file() for pair in WITHOUT.items() for path in pair)
