"""
Checks of a model directory's chat template, before a run starts and without loading a tokenizer.

Engines apply the template; these checks only find a missing template, prompts that it does not reach, and arguments
that it never reads.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrl.config.model.weights import REMEDY
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import read_json, read_text, within

FILE = "chat_template.jinja"
"""File of the template; older model directories have it in `SETTINGS`."""
SETTINGS = "tokenizer_config.json"


def read_template(model: Path) -> str:
    """Read the Jinja template, empty if the model has none; raises `ConfigError` if its file cannot be read."""
    if (model / FILE).exists():
        return read_text(within(model, FILE))
    template = _settings(model).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
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


def text_advice(template: str, *, has_texts: bool) -> list[str]:
    """Advice if some prompts are plain text, which the model reads without its ``template``; empty otherwise."""
    if not template or not has_texts:
        return []
    return [
        "prompts are plain text, so the model's chat template is not applied to them; set data.as_chat = true to make "
        "each one a message of the user, unless the model should continue the bare text"
    ]
