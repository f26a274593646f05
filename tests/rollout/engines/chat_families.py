"""
Chat templates in the formats of thirteen model families, with tokenizers to go with them.

The templates were written for these tests. What stands before the first question differs from the published ones: the
descriptions of tools are shorter, and there is no default system message. From there on the formats are the same.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from asyncrl.tools.toy.models import tokenizer_from_texts

FOLDER = Path(__file__).parent / "chat_templates"
TEXTS = ("The answer to 12 + 30 is 42.", '{"name": "add", "arguments": {"a": 1}}', "Größe, 水, Привет\n\n\tend")
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
DEEPSEEK_CALLS = ("calls▁begin", "call▁begin", "call▁end", "calls▁end", "sep")
DEEPSEEK_OUTPUTS = ("outputs▁begin", "output▁begin", "output▁end", "outputs▁end")


class Family(Struct, frozen=True):
    """A chat template, and how its policy writes."""

    name: str
    special: tuple[str, ...]
    added: tuple[str, ...]
    """Tokens of their own that are not special."""
    end: str
    """Token with which a turn ends."""
    form: str
    """Form of calls."""
    call: Callable[[str, str], str]
    """Text of a call of ``name`` with the argument ``a``."""
    thought: str = ""
    """Format of an answer with a thought, as the template would render it."""
    begins: str = ""
    """Text before every answer without a thought."""
    says: str = ""
    """Text before an answer that is no call."""
    end_of_call: str = ""
    """Token with which a turn ends that an answer of a tool follows, if it is another one."""
    answers_calls: bool = False
    """The template shows an answer of a tool only after a call."""


def hermes(name: str, value: str) -> str:
    return (
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps({"a": value}, ensure_ascii=False)}}}\n</tool_call>'
    )


def qwen_xml(name: str, value: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


def glm(name: str, value: str) -> str:
    return f"<tool_call>{name}\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


def llama(name: str, value: str) -> str:
    return f'{{"name": "{name}", "parameters": {json.dumps({"a": value}, ensure_ascii=False)}}}'


def deepseek(name: str, value: str) -> str:
    arguments = json.dumps({"a": value}, ensure_ascii=False)
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def deepseek_v3_1(name: str, value: str) -> str:
    arguments = json.dumps({"a": value}, ensure_ascii=False)
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def kimi(name: str, value: str) -> str:
    arguments = json.dumps({"a": value}, ensure_ascii=False)
    return (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )


def mistral(name: str, value: str) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps({'a': value}, ensure_ascii=False)}"


def harmony(name: str, value: str) -> str:
    arguments = json.dumps({"a": value}, ensure_ascii=False)
    return f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}"


def gemma(name: str, value: str) -> str:
    return f'<|tool_call>call:{name}{{a:<|"|>{value}<|"|>}}<tool_call|>'


KIMI_CALLS = ("tool_calls_section_begin", "tool_call_begin", "tool_call_argument_begin", "tool_call_end")
KIMI = ("im_end", "im_user", "im_assistant", "im_system", "im_middle", *KIMI_CALLS, "tool_calls_section_end")
MISTRAL = ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_RESULTS", "THINK")
HARMONY = ("start", "end", "message", "channel", "constrain", "call", "return")
GEMMA = ("turn", "tool", "tool_call", "tool_response", "channel")
LLAMA = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "python_tag")
FAMILIES = {
    family.name: family
    for family in (
        Family("qwen2_5", CHATML, TAGS[2:], "<|im_end|>", "hermes", hermes),
        Family("qwen3", CHATML, TAGS, "<|im_end|>", "hermes", hermes, "<think>\n{}\n</think>\n\n"),
        Family("qwen3_5", CHATML, TAGS, "<|im_end|>", "qwen_xml", qwen_xml),
        Family("llama3", tuple(f"<|{name}|>" for name in LLAMA), (), "<|eot_id|>", "llama_json", llama),
        Family(
            "glm4_5",
            ("[gMASK]", "<sop>", *(f"<|{role}|>" for role in ("system", "user", "assistant", "observation"))),
            (*TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            "<|user|>",
            "glm",
            glm,
            "\n<think>{}</think>\n",
            "\n<think></think>\n",
            end_of_call="<|observation|>",
        ),
        Family(
            "deepseek_v3",
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
            ("<｜User｜>", "<｜Assistant｜>", *(f"<｜tool▁{name}｜>" for name in DEEPSEEK_CALLS + DEEPSEEK_OUTPUTS)),
            "<｜end▁of▁sentence｜>",
            "deepseek",
            deepseek,
        ),
        Family(
            "deepseek_v3_1",
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
            (
                *("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
                *(f"<｜tool▁{name}｜>" for name in DEEPSEEK_CALLS + DEEPSEEK_OUTPUTS),
            ),
            "<｜end▁of▁sentence｜>",
            "deepseek_v3_1",
            deepseek_v3_1,
        ),
        Family("kimi_k2", tuple(f"<|{name}|>" for name in KIMI), (), "<|im_end|>", "kimi", kimi),
        Family(
            "mistral",
            (
                *("<s>", "</s>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
                *(f"[{slash}{name}]" for name in MISTRAL for slash in ("", "/")),
            ),
            (),
            "</s>",
            "mistral",
            mistral,
            "[THINK]{}[/THINK]",
        ),
        Family(
            "gpt_oss",
            ("<|startoftext|>", *(f"<|{name}|>" for name in HARMONY)),
            (),
            "<|return|>",
            "harmony",
            harmony,
            "<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
            says="<|channel|>final<|message|>",
            end_of_call="<|call|>",
            answers_calls=True,
        ),
        Family(
            "gemma4",
            ("<bos>", '<|"|>', *(f"<|{name}>" for name in GEMMA), *(f"<{name}|>" for name in GEMMA)),
            (),
            "<turn|>",
            "gemma",
            gemma,
            "<|channel>thought\n{}\n<channel|>",
            end_of_call="<|tool_response>",
            answers_calls=True,
        ),
    )
}

WITHOUT_TOOLS = {
    family.name: family
    for family in (
        Family("gemma3", ("<bos>", "<start_of_turn>", "<end_of_turn>"), (), "<end_of_turn>", "plain", hermes),
        Family("phi3", ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), (), "<|end|>", "plain", hermes),
    )
}
"""Families whose templates know no tools: the first raises an error for their answers, the second leaves them out."""


def template(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")


@cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A small byte-level BPE with the tokens of a family."""
    family = (FAMILIES | WITHOUT_TOOLS)[name]
    made = tokenizer_from_texts(TEXTS, 400, special=family.special)
    made.add_tokens(list(family.added))
    made.bos_token = family.special[0]
    made.chat_template = template(name)
    return made
