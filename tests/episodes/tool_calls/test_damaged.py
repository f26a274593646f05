"""A call that is damaged is damaged alone: those beside it arrive as they were written, and no other call arises."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.episodes.call_forms import PARSERS

Arguments = dict[str, str]


def hermes(name: str, arguments: Arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen_xml(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm(name: str, arguments: Arguments) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def llama_json(name: str, arguments: Arguments) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def deepseek(name: str, arguments: Arguments) -> str:
    written = json.dumps(arguments)
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{written}\n```<｜tool▁call▁end｜>"


def deepseek_v3_1(name: str, arguments: Arguments) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"


def kimi(name: str, arguments: Arguments) -> str:
    written = json.dumps(arguments)
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{written}<|tool_call_end|>"


def mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def harmony(name: str, arguments: Arguments) -> str:
    written = json.dumps(arguments)
    return f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{written}<|call|>"


def gemma(name: str, arguments: Arguments) -> str:
    pairs = ",".join(f'{key}:<|"|>{value}<|"|>' for key, value in arguments.items())
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


WRITERS: dict[str, Callable[[str, Arguments], str]] = {
    "hermes": hermes,
    "qwen_xml": qwen_xml,
    "glm": glm,
    "llama_json": llama_json,
    "deepseek": deepseek,
    "deepseek_v3_1": deepseek_v3_1,
    "kimi": kimi,
    "mistral": mistral,
    "harmony": harmony,
    "gemma": gemma,
}
BETWEEN = {"llama_json": "; "}
STRINGS = {"type": "string"}
PARAMETERS = {"properties": {"path": STRINGS, "text": STRINGS}}
SCHEMAS: dict[str, Any] = dict.fromkeys(("read", "delete", "write"), PARAMETERS)
QUOTED = {
    "hermes": hermes("delete", {"path": "all"}),
    "deepseek": deepseek("delete", {"path": "all"}),
    "deepseek_v3_1": deepseek_v3_1("delete", {"path": "all"}),
    "kimi": kimi("delete", {"path": "all"}),
    "mistral": mistral("delete", {"path": "all"}),
    "harmony": harmony("delete", {"path": "all"}),
    "llama_json": llama_json("delete", {"path": "all"}) + ";\n" + llama_json("delete", {"path": "all"}),
}
"""A text that a call of JSON may have as an argument: an example of a call."""


def damaged(text: str, rng: random.Random) -> str:
    """The text with one to three edits: pieces lost, repeated, moved or put in."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        end = min(start + rng.choice([1, 1, 2, 5, 12, 30]), len(text))
        put = rng.choice(["", "", text[start:end] * 2, text[:end], rng.choice('<>{}"\\;\n `=/'), "</tool_call>", "</"])
        text = text[:start] + put + text[end:]
    return text


def scene(form: str, rng: random.Random) -> tuple[str, list[tuple[str, Arguments]], str]:
    """A turn with three calls, of which one is damaged; the sound ones, and the damaged text."""
    texts = ["a b", "2", "x = 1\ny", "é ", QUOTED.get(form, "plain")]
    calls = [(name, {"path": f"{name}/{rng.randrange(9)}", "text": rng.choice(texts)}) for name in SCHEMAS]
    rng.shuffle(calls)
    place = rng.randrange(len(calls))
    broken = damaged(WRITERS[form](*calls[place]), rng)
    written = [broken if number == place else WRITERS[form](*call) for number, call in enumerate(calls)]
    return BETWEEN.get(form, "\n").join(written), calls[:place] + calls[place + 1 :], broken


def problem_with(form: str, seed: int) -> str:
    """What is wrong with what the parser makes of one damaged turn; empty if nothing is."""
    text, sound, broken = scene(form, random.Random(seed))
    delivered = [(call.name, call.arguments) for call in PARSERS[form](text, SCHEMAS).calls if not call.problem]
    alone = [(call.name, call.arguments) for call in PARSERS[form](broken, SCHEMAS).calls if not call.problem]
    lost = [call for call in sound if call not in delivered]
    arisen = [call for call in delivered if call not in sound and call not in alone]
    return f"lost {lost}, arisen {arisen} in {text!r}" if lost or arisen else ""


@pytest.mark.parametrize("form", [form for form in WRITERS if form != "llama_json"])
@given(seed=st.integers(0, 2**32))
def test_calls_beside_a_damaged_one_arrive_as_written_and_no_other_arises(form: str, seed: int) -> None:
    assert not problem_with(form, seed)


@given(seed=st.integers(0, 2**32))
def test_of_bare_json_no_call_arises_that_nobody_wrote(seed: int) -> None:
    """A turn that does not begin with a call is no call at all, so those behind it are text as well."""
    assert "arisen []" in (problem_with("llama_json", seed) or "arisen []")
