"""Calls as a tokenizer's own response template finds them."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from asyncrl.environment.interface import PolicyTurn
from asyncrl.rollout.engines.seams import make_seam
from tests.rollout.engines.chat_families import tokenizer

TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"close": "<|im_end|>"},
        "tool_calls": {"open": "<run>", "close": "</run>", "repeats": True, "content": "json"},
    },
}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> PreTrainedTokenizerBase:
    made = tokenizer("qwen2_5")
    monkeypatch.setattr(made, "response_template", TEMPLATE)
    return made


def said(words: PreTrainedTokenizerBase, written: str) -> PolicyTurn:
    return make_seam(words).said(words(written, add_special_tokens=False).input_ids, "stop")


def test_auto_takes_the_response_template(words: PreTrainedTokenizerBase) -> None:
    turn = said(words, 'Look.<run>{"name": "add", "arguments": {"a": 1}}</run><|im_end|>')
    assert (turn.content, turn.text) == ("Look.", 'Look.<run>{"name": "add", "arguments": {"a": 1}}</run>')
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("<run>{</run>", "the turn cannot be read: "),
        ("<run>[1]</run>", "is a list, expected a JSON object"),
        ('<run>{"name": "add", "arguments": 5}</run>', 'of add has a number as "arguments"'),
        ('<run>{"name": "add", "arguments": {"a": 99999999999999999999999}}</run>', "cannot be sent on"),
    ],
)
def test_what_cannot_be_read_is_a_problem(words: PreTrainedTokenizerBase, written: str, problem: str) -> None:
    (call,) = said(words, written).tool_calls
    assert problem in call.problem


def test_too_many_calls_are_a_problem(words: PreTrainedTokenizerBase) -> None:
    *calls, last = said(words, '<run>{"name": "add"}</run>' * 70).tool_calls
    assert (len(calls), last.problem) == (64, "the turn has more than 64 calls")
