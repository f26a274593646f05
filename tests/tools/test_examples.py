"""Examples are copied with what they use, to the paths that they name."""

import re
from pathlib import Path

import pytest

from asyncrl.config.meanings import meanings
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.messages.wire import MESSAGES
from asyncrl.records.metrics import METRICS
from asyncrl.tools import examples


def test_every_run_file_service_folder_and_program_is_an_example() -> None:
    known = examples.names()
    assert {"conf/quickstart.toml", "conf/plan/verl-128.toml", "examples/own_reward.py"} <= set(known)
    assert {"conf/kubernetes/", "conf/slurm/", "conf/container/", "conf/systemd/"} <= set(known)
    assert [name for name in known if "__pycache__" in name] == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("quickstart", "conf/quickstart.toml"),
        ("conf/quickstart.toml", "conf/quickstart.toml"),
        ("kubernetes", "conf/kubernetes/"),
        ("own_reward.py", "examples/own_reward.py"),
    ],
)
def test_an_example_is_found_by_its_path_or_its_last_part(wanted: str, found: str) -> None:
    assert examples.find(wanted) == found


def test_an_unknown_example_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no example 'quickstrat': did you mean 'quickstart'"):
        examples.find("quickstrat")


def test_the_files_that_a_run_file_names_come_with_it(tmp_path: Path) -> None:
    copied = examples.copy(examples.find("hidden-sums"), tmp_path)
    assert copied == {tmp_path / "conf/hidden-sums.toml": True, tmp_path / "examples/hidden_sums.py": True}
    function = load_config(tmp_path / "conf/hidden-sums.toml").environment.function
    assert (tmp_path / function.partition(":")[0]).is_file()


def test_a_folder_is_copied_as_a_whole(tmp_path: Path) -> None:
    copied = examples.copy("conf/kubernetes/", tmp_path)
    assert {path.name for path in copied} >= {"broker.yaml", "run.toml", ".gitignore"}


@pytest.mark.slow("builds all pages of a run")
def test_the_pages_lead_to_each_other_and_nowhere_else(tmp_path: Path) -> None:
    pages = {path.name: path.read_text() for path in examples.copy("docs/", tmp_path)}
    assert {"configuration.md", "errors.md", "messages.md", "metrics-table.md"} < pages.keys()
    links = {link for text in pages.values() for link in re.findall(r"\]\(([^)#: ]+\.\w+)[)#]", text)}
    assert links > {"errors.md", "keys.md"}
    assert links <= pages.keys()


def test_a_changed_file_is_never_overwritten_and_an_equal_one_is_no_obstacle(tmp_path: Path) -> None:
    first, reward = examples.copy(examples.find("gsm8k-tiny"), tmp_path)
    assert examples.copy(examples.find("gsm8k-tiny"), tmp_path) == {first: False, reward: False}
    reward.write_text("mine")
    first.unlink()
    with pytest.raises(ConfigError, match=r"gsm8k_tiny_reward.py exists and is different"):
        examples.copy(examples.find("gsm8k-tiny"), tmp_path)
    assert (reward.read_text(), first.exists()) == ("mine", False)


def test_the_commands_of_a_run_file_are_those_of_its_opening_comment() -> None:
    assert examples.commands("conf/quickstart.toml") == [
        "asyncrl toy step-sums cache/step-sums",
        "asyncrl run conf/quickstart.toml",
    ]
    assert examples.commands("conf/slurm/") == []


def test_a_command_of_two_lines_is_one_and_has_no_remark() -> None:
    recipe = examples.commands("conf/recipes/gsm8k-qwen2.5-3b-one-step-off.toml")
    assert recipe == [
        "asyncrl data prepare gsm8k train.jsonl --out data/gsm8k/train.parquet",
        "asyncrl run conf/recipes/gsm8k-qwen2.5-3b-one-step-off.toml "
        "--set model.path=models/Qwen2.5-3B-Instruct --set data.train=data/gsm8k/train.parquet",
    ]


def test_the_list_has_one_line_for_each_name_that_can_be_asked_for() -> None:
    lines = list(examples.listing())
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert {examples.find(name) for name in listed} == set(examples.names())
    assert len(listed) == len(examples.names())
    assert [line for line in lines if len(line) > examples.WIDTH] == []


def test_an_example_is_described_by_its_first_sentence() -> None:
    assert examples.describe("conf/quickstart.toml") == (
        "First run: a small model learns to solve sums step by step instead of guessing, on two CPU cores"
    )
    assert examples.describe("conf/slurm/") == "One run as a job of Slurm"
    assert all(map(examples.describe, examples.names()))


# ── test reference ────────────────────────────────────────────────────────────────────────────
# Pages that are made from the code have all of its settings, errors, metrics and messages between processes.


def test_every_setting_of_a_run_file_is_on_the_page() -> None:
    page = examples.configuration()
    assert "| `steps` | integer ≥ 1 | `60` | Optimizer steps to train, unless `epochs` decides. |" in page
    assert "| `path` | string | required |" in page
    assert "| `lr` *live* |" in page
    assert "| `parts.weight` | number | `1.0` |" in page
    assert page.count("\n| `") == len([each for meaning in meanings().values() for each in (meaning, *meaning.items)])


def test_a_message_is_found_with_its_variable_parts_marked(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('def f(n):\n    raise ConfigError(f"expected {n} rows, " f"got none")\n')
    (message,) = examples.messages(tmp_path)
    assert (message.text, message.error, message.module) == ("expected … rows, got none", "ConfigError", "module.py")


def test_the_page_of_errors_has_the_messages_of_the_package() -> None:
    page = examples.error_page()
    assert "no broker answered at … within … s" in page
    assert "| `ConfigError` | 78 |" in page


def test_every_metric_has_a_row_under_its_owner() -> None:
    page = examples.metrics_page()
    assert {metric.owner for metric in METRICS.values()} == set(examples.OWNERS)
    assert all(page.count(f"| `{name}` | {metric.kind} |") == 1 for name, metric in METRICS.items())
    assert "`stage`: reward, payload | Of these, failures by stage. |" in page


def test_links_out_of_the_documentation_become_names_of_files() -> None:
    page = "[keys](keys.md), [the code](../asyncrl/wire/keys/key.py)"
    assert examples.without_links_elsewhere(page) == "[keys](keys.md), `the code`"


def test_every_message_between_processes_is_on_the_page_with_its_senders() -> None:
    page = examples.message_page()
    assert "| `Take` | trainer | Request the batch of `step`." in page
    assert "| `Failed` | rollout, reward, trainer | Generation or grading of a unit failed." in page
    assert all(f"| `{kind.__name__}` | " in page for kind in MESSAGES)
