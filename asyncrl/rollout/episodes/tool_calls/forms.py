"""Choice of a parser: by ``environment.tool_parser``, or by the text of the chat template."""

from collections.abc import Mapping

from asyncrl.rollout.episodes.tool_calls import deepseek, glm, hermes, llama_json, qwen_xml
from asyncrl.rollout.episodes.tool_calls.found import Found, Parser, Schemas

PARSERS: Mapping[str, Parser] = {
    "hermes": hermes.parse,
    "qwen_xml": qwen_xml.parse,
    "glm": glm.parse,
    "llama_json": llama_json.parse,
    "deepseek": deepseek.parse,
}
TRACES: Mapping[str, tuple[str, ...]] = {
    "qwen_xml": ("<function=",),
    "glm": ("<arg_key>",),
    "deepseek": (deepseek.CALL,),
    "hermes": ("<tool_call>",),
    "llama_json": ('"parameters": ', '{"name": '),
}
"""Texts that a chat template contains, all of them, if its model writes calls in this form; the first that fits."""
MARKS = frozenset(
    {
        "<tool_call>",
        "</tool_call>",
        llama_json.PYTHON_TAG,
        deepseek.SECTION,
        deepseek.END_OF_SECTION,
        deepseek.CALL,
        deepseek.END_OF_CALL,
        deepseek.SEPARATOR,
        "<think>",
        "</think>",
    }
)
"""Texts that parsers look for and that a tokenizer may have as special tokens."""


def form_of(chat_template: str) -> str | None:
    """Name of the form in which a model with this chat template writes calls; None if it has none of them."""
    fitting = (form for form, traces in TRACES.items() if all(trace in chat_template for trace in traces))
    return next(fitting, None)


def no_calls(text: str, schemas: Schemas) -> Found:
    """The text, without looking for calls."""
    return Found(text)
