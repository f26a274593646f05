"""A run file has its sections in order, comments above settings, and reads back."""

import tomllib

from asyncrl.verl.run_file import to_toml


def test_settings_read_back_in_the_order_of_the_reference() -> None:
    text = to_toml({"trainer.lr": 1e-6, "rollout.vllm.engine_args.a": [1], "rollout.slots": 2, "run.steps": 3}, {})
    assert tomllib.loads(text) == {
        "run": {"steps": 3},
        "rollout": {"slots": 2, "vllm": {"engine_args": {"a": [1]}}},
        "trainer": {"lr": 1e-6},
    }
    assert text.index("[run]") < text.index("[rollout]") < text.index("[rollout.vllm.engine_args]")


def test_a_long_comment_is_wrapped_above_its_setting() -> None:
    text = to_toml({"run.steps": 3}, {"run.steps": "word " * 40}, ["head"])
    assert text.startswith("# head\n\n[run]\n# word word")
    assert max(map(len, text.splitlines())) <= 120
    assert tomllib.loads(text) == {"run": {"steps": 3}}


def test_a_list_of_tables_is_written_as_tables() -> None:
    parts = [{"name": "a", "options": {"x": 1}}, {"name": "b"}]
    text = to_toml({"reward.parts": parts}, {"reward.parts": "two"})
    assert text.count("[[reward.parts]]") == 2
    assert tomllib.loads(text) == {"reward": {"parts": parts}}
