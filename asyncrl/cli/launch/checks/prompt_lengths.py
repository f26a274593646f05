"""
Check that prompts have at most ``data.max_prompt_tokens``, before a run starts.

    prompts ─ the longest by characters ─▶ chat template ─▶ tokenizer.json ─▶ too long? ─▶ counted as engines do

transformers may read a tokenizer.json in its own way and takes seconds to import, so it counts the suspects alone.

Only the `COUNTED` longest of at most `READ` prompts are counted; `asyncrl data check` counts all.
"""

import heapq
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.cli.data import token_counter
from asyncrl.config.config import Config
from asyncrl.config.model.tokenizer import FAST
from asyncrl.data.chat_template import read_special_tokens, read_template
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt
from asyncrl.node.machine.machine import TRAIN, missing_packages

COUNTED = 5000
"""0.1 ms each."""
READ = 100_000
"""Prompts whose characters are counted, 20 µs each; of a larger dataset every second, every third and so on."""

Count = Callable[[Prompt], int]


def check_lengths(config: Config, name: str, stream: PromptStream, say: Callable[[str], None]) -> None:
    """
    Check the prompts of ``data.<name>``; ``say`` gets the number of those that the configuration leaves out.

    Without the trainer's packages, a tokenizer.json, or a limit on the prompts of rows, nothing is checked.

    Raises:
        ConfigError: Some have too many tokens, and are neither truncated nor left out.
    """
    data, path = config.data, Path(config.model.path)
    if data.truncation != "error" or config.environment.is_set or missing_packages(TRAIN):
        return
    if not (count := token_count(path, data.chat_template_kwargs)):
        return
    every = -(-stream.num_rows // READ)
    longest = heapq.nlargest(COUNTED, stream.prompts(every), key=num_chars)
    suspects = [prompt for prompt in longest if count(prompt) > data.max_prompt_tokens]
    more = f"of {stream.num_rows:,} prompts have more tokens than data.max_prompt_tokens = {data.max_prompt_tokens:,}"
    if suspects and data.filter_overlong_prompts:
        say(f"data.{name}: about {len(suspects):,} {more}; they are left out (data.filter_overlong_prompts)")
        return
    exact = token_counter(path, data) if suspects else count
    lengths = [length for length in map(exact, suspects) if length > data.max_prompt_tokens]
    if lengths:
        least = "at least " if every > 1 or len(lengths) == len(longest) < stream.num_rows else ""
        raise ConfigError(
            f"data.{name}: {least}{len(lengths):,} {more}, up to {max(lengths):,}: raise it, or leave them out with "
            f"data.filter_overlong_prompts = true, or cut them with data.truncation"
        )


def num_chars(prompt: Prompt) -> int:
    return len(prompt.text) + sum(len(message["content"]) for message in prompt.chat)


def token_count(model: Path, template_kwargs: dict[str, Any]) -> Count | None:
    """Counts tokens of prompts without transformers; None if the model has no tokenizer.json that can be read."""
    from tokenizers import Tokenizer

    if not (model / FAST).is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(model / FAST))
    except Exception:  # noqa: BLE001  the library raises nothing else; engines say what is wrong with the file
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return partial(_count, tokenizer, read_template(model), read_special_tokens(model) | template_kwargs)


def _count(tokenizer: Any, template: str, arguments: dict[str, Any], prompt: Prompt) -> int:
    if not prompt.chat:
        return len(tokenizer.encode(prompt.text))
    return len(tokenizer.encode(_rendered(template, prompt.chat, arguments), add_special_tokens=False))


def _rendered(template: str, chat: list[dict[str, str]], arguments: dict[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template  # takes a second

    try:
        rendered, _ = render_jinja_template(
            conversations=[chat], chat_template=template, add_generation_prompt=True, **arguments
        )
    except Exception:  # noqa: BLE001  a template may raise anything, and the rollouts report it
        return "".join(message["content"] for message in chat)
    return str(rendered[0])
