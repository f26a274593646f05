"""Every module has a test file of the same name at the mirrored path."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
EXCEPTIONS = {
    "asyncrl/__init__.py": "tests/test_interface.py",
    "asyncrl/__main__.py": "tests/cli/test_main.py",
    "asyncrl/config/sections": "tests/config/test_config.py",
    "asyncrl/messages": "tests/messages/test_wire.py",
}
"""Test files with another name, by module, or by the folder of modules that share one."""


def test_every_module_with_code_has_a_test_file() -> None:
    missing = []
    for path in sorted((ROOT / "asyncrl").rglob("*.py")):
        module = path.relative_to(ROOT)
        if path.name == "__init__.py" and not path.read_text(encoding="utf-8").count("\nimport"):
            continue
        mirror = (
            EXCEPTIONS.get(str(module))
            or EXCEPTIONS.get(str(module.parent))
            or Path("tests", *module.parts[1:-1], f"test_{module.name}")
        )
        if not (ROOT / mirror).is_file():
            missing.append(f"{module}: expected {mirror}")
    assert missing == []


def test_every_exception_names_existing_files() -> None:
    assert all((ROOT / path).exists() for pair in EXCEPTIONS.items() for path in pair)
