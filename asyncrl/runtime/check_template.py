"""
Check of a model's chat template, which is a program: tried in a process of its own, with limits.

Engines render it in their own process, in the sandbox of jinja, which has no limit of time or memory. One that waits
for a chat of its choice to loop endlessly is not found here: it stalls a rollout, which is restarted.
"""

import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.data.chat_template import read_special_tokens, read_template
from asyncrl.errors import ConfigError
from asyncrl.runtime.check_process import quiet_environment

CPU_S = 3
"""Seconds of a core for all trials, each of which takes milliseconds."""
MAX_MEMORY = 1 << 30
MAX_CHARS = 1 << 20
"""Longest text of a chat of some words: templates write a page of instructions before it at most."""
WAIT_S = 120.0
TURNS = ("user", "assistant", "user")
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def try_template(model: Path, arguments: Mapping[str, Any]) -> None:
    """
    Render some chats by the template of a model directory, if it has one.

    ``arguments`` are ``data.chat_template_kwargs``. Raises `ConfigError` if it takes too long or too much.
    """
    if not (template := read_template(model)):
        return
    told = msgspec.json.encode((template, {**read_special_tokens(model), **arguments}))
    command = [sys.executable, "-m", __name__]
    try:
        code = subprocess.run(
            command, input=told, capture_output=True, timeout=WAIT_S, check=False, env=quiet_environment()
        ).returncode
    except subprocess.TimeoutExpired:
        code = 1
    if code:
        raise ConfigError(
            f"the chat template of {model} does not end: a chat of three words took more than {CPU_S} s, "
            f"{MAX_MEMORY >> 30} GiB or {MAX_CHARS:,} characters; copy it from the model's origin"
        )


def _try() -> int:
    """Render some chats; the exit code is 1 if a text is too long, and that of a signal at the other limits."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template, arguments = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, dict[str, Any]])
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    turns = [{"role": role, "content": role} for role in TURNS]
    for chat in (turns[:1], turns, [{"role": "system", "content": "system"}, *turns]):
        for tools in (None, [TOOL]):
            try:
                (text,), _ = render_jinja_template(
                    [chat], tools, chat_template=template, add_generation_prompt=True, **arguments
                )
            except MemoryError:
                return 1
            except Exception:  # noqa: BLE001  it may refuse a chat by raising anything
                continue
            if len(text) > MAX_CHARS:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(_try())
