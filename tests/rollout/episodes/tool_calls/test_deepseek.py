import pytest

from asyncrl.rollout.episodes.tool_calls.deepseek import parse
from tests.rollout.engines.chat_families import deepseek


def test_calls_are_in_a_section_of_their_own() -> None:
    second = "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
    found = parse("Look." + deepseek("f", "```").replace("<｜tool▁calls▁end｜>", second + "<｜tool▁calls▁end｜>"), {})
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"a": "```"}), ("g", {})]
    assert found.content == "Look."


@pytest.mark.parametrize("block", ["f", "function<｜tool▁sep｜>f {}", "function<｜tool▁sep｜>```json{}```"])
def test_other_blocks_are_problems(block: str) -> None:
    (call,) = parse(f"<｜tool▁call▁begin｜>{block}<｜tool▁call▁end｜>", {}).calls
    assert "has no <｜tool▁sep｜>name with ```json" in call.problem
