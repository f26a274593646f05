"""Three pages are made from the code, and have all of its settings, messages and metrics."""

from pathlib import Path

from asyncrl.cli.start import reference
from asyncrl.config.meanings import meanings
from asyncrl.observe.metrics.table import METRICS


def test_every_setting_of_a_run_file_is_on_the_page() -> None:
    page = reference.configuration()
    assert "| `steps` | integer ≥ 1 | `60` | Optimizer steps to train, unless `epochs` decides. |" in page
    assert "| `path` | string | required |" in page
    assert "| `lr` *live* |" in page
    assert "| `parts.weight` | number | `1.0` |" in page
    assert page.count("\n| `") == len([each for meaning in meanings().values() for each in (meaning, *meaning.items)])


def test_a_message_is_found_with_its_variable_parts_marked(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('def f(n):\n    raise ConfigError(f"expected {n} rows, " f"got none")\n')
    (message,) = reference.messages(tmp_path)
    assert (message.text, message.error, message.module) == ("expected … rows, got none", "ConfigError", "module.py")


def test_the_page_of_errors_has_the_messages_of_the_package() -> None:
    page = reference.error_page()
    assert "no broker answered at … within … s" in page
    assert "| `ConfigError` | 78 |" in page


def test_every_metric_has_a_row_under_its_owner() -> None:
    page = reference.metrics_page()
    assert {metric.owner for metric in METRICS.values()} == set(reference.OWNERS)
    assert all(page.count(f"| `{name}` | {metric.kind} |") == 1 for name, metric in METRICS.items())
    assert "`stage`: reward, payload | Of these, failures by stage. |" in page


def test_links_out_of_the_documentation_become_names_of_files() -> None:
    page = "[keys](keys.md), [the code](../asyncrl/keys/key.py)"
    assert reference.without_links_elsewhere(page) == "[keys](keys.md), `the code`"
