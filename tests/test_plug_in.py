"""Custom functions are loaded, and errors name the function and its file."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.plug_in import MAX_CHARS, REQUIRED, describe, hint, is_path, load_function, settings_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "LIMIT = 3\n"
        "SEEN = []\n"
        "class Judge: ...\n"
        "def remember(x): SEEN.append(x)\n"
        "def recall(x, *, gamma=0.5, lam): return SEEN\n"
    )
    return path


def test_a_path_differs_from_a_name_by_its_colon() -> None:
    assert is_path("mine.py:advantage")
    assert is_path("package.module:advantage")
    assert not is_path("grpo")


def test_functions_of_one_file_share_its_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_function(f"{file}:remember", setting="algorithm.loss")(7)
    monkeypatch.chdir(file.parent)

    assert load_function("mine.py:recall", setting="algorithm.advantage")(0, lam=1) == [7]


def test_a_module_of_the_working_directory_is_found_after_those_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "rewards_of_mine.py").write_text("def score(x): return 'mine'\n")
    (tmp_path / "wave.py").write_text("def open(x): return 'mine'\n")
    assert load_function("rewards_of_mine:score", setting="reward.function")(0) == "mine"
    assert load_function("wave:open", setting="reward.function").__module__ == "wave"
    assert Path(sys.modules["wave"].__file__ or "").parent != tmp_path


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def where(): return {folder!r}\n")

    found = [load_function(f"{tmp_path}/{folder}/mine.py:where", setting="x") for folder in ("a", "b")]

    assert [where() for where in found] == ["a", "b"]


def test_a_file_that_failed_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def f(): return 1\nraise ValueError\n")
    with pytest.raises(ConfigError):
        load_function(f"{path}:f", setting="x")
    path.write_text("def f(): return 2\n")

    assert load_function(f"{path}:f", setting="x")() == 2


def test_a_function_is_loaded_from_a_module() -> None:
    assert load_function("asyncrl.plug_in:hint", setting="x") is hint


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("zebra", "expected path/to/file.py:name or package.module:name"),
        ("{dir}/mine.py:", "expected path/to/file.py:name or package.module:name"),
        ("{dir}/main.py:recall", "/mine.py?"),
        ("{dir}/mine.py:recal", "did you mean 'recall'?"),
        ("{dir}/mine.py:LIMIT", "is 3, expected a function"),
        ("{dir}/mine.py:Judge", "expected a function"),
        ("{dir}/data.txt/x:f", "there is no file"),
        ("no.such.module:f", "ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_a_missing_function_is_refused_in_one_sentence_with_the_setting(file: Path, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_function(path.format(dir=file.parent), setting="algorithm.loss")

    assert str(caught.value).startswith("algorithm.loss")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", r"ZeroDivisionError: division by zero \(.*mine\.py:2\)"),
        ("def score(:\n", r"SyntaxError: .*mine\.py, line 1"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_function(f"{tmp_path}/mine.py:score", setting="reward.function")


def settings(function: Any, *options: str) -> Mapping[str, Any]:
    return settings_of(
        function, takes="outcomes", known=("gamma", "lam"), path="mine.py:f", setting="algorithm.x", options=options
    )


def test_settings_are_keyword_only_arguments_with_their_defaults() -> None:
    assert settings(lambda outcomes, *, gamma=0.5, lam: 0) == {"gamma": 0.5, "lam": REQUIRED}
    assert settings(lambda outcomes, /: 0) == {}


def test_other_keyword_arguments_are_options() -> None:
    assert settings(lambda outcomes, *, gamma=0.5, power=1.0: 0) == {"gamma": 0.5}
    assert settings((lambda outcomes, *, power: 0), "power") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "algorithm.x 'mine.py:f' needs 'power', which is neither a setting nor given in algorithm.x_options; set"),
        (
            ("power", "widht"),
            "algorithm.x_options.widht is not a keyword argument of 'mine.py:f': did you mean 'width'?",
        ),
        (("power", "gamma"), "algorithm.x_options.gamma is the name of a setting; set algorithm.gamma instead"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_sentence(options: tuple[str, ...], message: str) -> None:
    def function(outcomes: Any, *, power: float, width: float = 1.0, gamma: float = 1.0) -> None: ...

    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        settings(function, *options)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 0, "must be def f(outcomes, *, <settings and options>), but it takes no argument"),
        (lambda *outcomes: 0, "but its first argument is '*outcomes'"),
        (lambda *, gamma: 0, "but its first argument is 'gamma'"),
        (lambda outcomes, gamma: 0, "but 'gamma' is not keyword-only"),
        (lambda outcomes, **settings: 0, "but '**settings' is not keyword-only"),
        (dict.fromkeys, "but "),
    ],
)
def test_a_function_that_does_not_fit_is_refused_in_one_sentence(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        settings(function)

    assert str(caught.value).startswith("algorithm.x 'mine.py:f'")
    assert "\n" not in str(caught.value)


def test_a_hint_is_the_nearest_name_or_all_of_them() -> None:
    assert hint("gama", ["gamma", "lam"]) == "did you mean 'gamma'?"
    assert hint("zebra", ["gamma", "lam"]) == "expected one of: gamma, lam"
    assert hint("zebra", []) == "there are none"


def parse(text: str) -> object:
    return json.loads(text)


def test_an_exception_is_described_with_the_line_of_the_caller_of_a_library() -> None:
    try:
        parse("{")
    except ValueError as error:
        message, without_ours = describe(error), describe(error, __file__)

    line = parse.__code__.co_firstlineno + 1
    assert message.startswith("JSONDecodeError: Expecting property name")
    assert message.endswith(f"({__file__}:{line})")
    assert __file__ not in without_ours


def test_an_exception_without_a_text_or_with_an_enormous_one_is_described_at_once() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Loud(Exception):
        def __str__(self) -> str:
            return "x " * 50_000_000

    assert describe(Mute()) == "Mute: (its text cannot be shown: __str__ raised RuntimeError)"
    assert len(describe(Loud())) < 450
    assert len(describe(type("N" * 100_000, (Exception,), {})("why"))) < 450


def test_an_exception_is_described_in_one_short_line_of_valid_text() -> None:
    message = describe(ValueError("a\nb\udcff" + "x" * 10_000))

    assert message.startswith("ValueError: a b\\udcff")
    assert len(message) <= MAX_CHARS + len("ValueError: ")
    assert describe(KeyError()) == "KeyError"


def test_an_exception_cannot_command_a_terminal_by_its_text_or_its_type() -> None:
    named = type("\x1b[31mE\u202e", (Exception,), {})
    assert describe(named("\x1b]0;OWNED\x07\x9b31m")) == "\\x1b[31mE\\u202e: \\x1b]0;OWNED\\x07\\x9b31m"


# ── code that the operator of a node allows ─────────────────────────────────────────────────


def test_a_node_imports_only_what_its_operator_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rewards.py").write_text("def score(sample):\n    return 1.0\n")
    monkeypatch.setenv("ASYNCRL_ALLOW_CODE", f"{tmp_path}/mine:json")
    assert callable(load_function(f"{tmp_path}/mine/rewards.py:score", setting="reward.function"))
    assert callable(load_function("json.tool:main", setting="reward.function"))
    for path in (f"{tmp_path}/theirs/rewards.py:score", f"{tmp_path}/mine/../theirs/rewards.py:score", "jsonx:f"):
        with pytest.raises(ConfigError, match=r"this node may only import code from .*mine:json \(--allow-code\)"):
            load_function(path, setting="reward.function")
