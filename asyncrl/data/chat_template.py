"""
The chat template of a model directory, looked at before anything is started and without loading a tokenizer.

Whoever applies it is an engine; here is only whether there is one, and whether it reads what it is to be told.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.errors import ConfigError

FILE = "chat_template.jinja"
"""Where a model directory has it by itself; older ones have it in `SETTINGS`."""
SETTINGS = "tokenizer_config.json"


def read_template(model: Path) -> str:
    """
    The template, as Jinja; empty if the model has none.

    Raises:
        ConfigError: A file that should hold it cannot be read.
    """
    try:
        if (model / FILE).exists():
            return (model / FILE).read_text(encoding="utf-8")
        if not (model / SETTINGS).exists():
            return ""
        settings = msgspec.json.decode((model / SETTINGS).read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the chat template of {model} cannot be read: {error}") from error
    return _default(settings.get("chat_template"))


def check_template(template: str, arguments: Iterable[str], *, has_chats: bool) -> None:
    """
    Refuse what a template would not do.

    Args:
        template: Empty if the model has none.
        arguments: Names of ``data.chat_template_kwargs``.
        has_chats: Some prompts are chats.

    Raises:
        ConfigError: There are chats and no template, or an argument that the template never reads.
    """
    if has_chats and not template:
        raise ConfigError(
            "data has prompts that are chats, but the model has no chat template; use another model, or prompts that "
            "are plain text (asyncrl data prepare --text)"
        )
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(
                f"data.chat_template_kwargs.{name} is set, but the model's chat template never reads it"
                if template
                else f"data.chat_template_kwargs.{name} is set, but the model has no chat template"
            )


def _default(found: Any) -> str:
    """A model may have several templates, of which the one called ``default`` is used."""
    if isinstance(found, list):
        named = (entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default")
        found = next(named, {}).get("template")
    return found if isinstance(found, str) else ""
