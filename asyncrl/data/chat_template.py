"""
Checks of a model directory's chat template, before a run starts and without loading a tokenizer.

Engines apply the template; these checks only find a missing template, prompts that it does not reach, and arguments
that it never reads.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from asyncrl.config.model.weights import REMEDY
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import read_json, read_text, within

FILE = "chat_template.jinja"
"""File of the template; older model directories have it in `SETTINGS`."""
SETTINGS = "tokenizer_config.json"
SHOWN = 5
"""Most tools that are named."""
TOOL_NAME = "tool_use"
TOOL_FILE = f"additional_chat_templates/{TOOL_NAME}.jinja"


def read_template(model: Path, *, of_tools: bool = False) -> str:
    """
    Read the Jinja template, empty if the model has none; raises `ConfigError` if its file cannot be read.

    With ``of_tools``, that for chats with tools, which some models have beside the other.
    """
    names = (*([TOOL_FILE] if of_tools else []), FILE)
    if found := next((name for name in names if (model / name).exists()), ""):
        return read_text(within(model, found))
    template = _settings(model).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get(TOOL_NAME if of_tools and TOOL_NAME in named else "default")
    return template if isinstance(template, str) else ""


def read_special_tokens(model: Path) -> dict[str, str]:
    """Read the tokens that a template may name, such as ``bos_token``; raises as `read_template`."""
    tokens = {name: value for name, value in _settings(model).items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _settings(model: Path) -> dict[str, Any]:
    return read_json(within(model, SETTINGS), dict[str, Any], remedy=REMEDY) if (model / SETTINGS).exists() else {}


def check_template(template: str, arguments: Iterable[str], *, has_chats: bool) -> None:
    """
    Check that the template fits the prompts and the arguments.

    Args:
        template: Empty if the model has none.
        arguments: Names of ``data.chat_template_kwargs``.
        has_chats: True if some prompts are chats.

    Raises:
        ConfigError: There are chats and no template, or the template never reads an argument.
    """
    if has_chats and not template:
        raise ConfigError(
            "data has prompts that are chats, but the model has no chat template; use another model, or prompts that "
            "are plain text (data.as_chat = false, asyncrl data prepare --text)"
        )
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(
                f"data.chat_template_kwargs.{name} is set, but the model's chat template never reads it"
                if template
                else f"data.chat_template_kwargs.{name} is set, but the model has no chat template"
            )


def check_tools(template: str, tools: Collection[str]) -> None:
    """Raise `ConfigError` if rows show these tools, and ``template``, that of chats with tools, never reads any."""
    if tools and not re.search(r"\btools\b", template):
        raise ConfigError(
            f"rows have tools ({', '.join(sorted(tools)[:SHOWN])}), but the model's chat template never reads them: "
            f"take another model, or an [environment] with tool_parser = 'plain', which shows them as text, or set "
            f'data.tools_column = ""'
        )


def text_advice(template: str, *, has_texts: bool) -> list[str]:
    """Advice if some prompts are plain text, which the model reads without its ``template``; empty otherwise."""
    if not template or not has_texts:
        return []
    return [
        "prompts are plain text, so the model's chat template is not applied to them; set data.as_chat = true to make "
        "each one a message of the user, unless the model should continue the bare text"
    ]
