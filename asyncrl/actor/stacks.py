"""Stacks of this process in words: where each thread is, and what each asyncio task waits for."""

import asyncio
import io
import sys
import threading
import traceback
from types import FrameType

MAX_CHARS = 200_000
"""Length of the text; the rest is left out, and counted."""


def current_stacks() -> str:
    """Stacks of all threads and of all tasks of the running event loop, each with its name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [f"thread {names.get(number, number)}\n{_frames(frame)}" for number, frame in sys._current_frames().items()]
    parts += [f"task {task.get_name()}\n{_task(task)}" for task in sorted(asyncio.all_tasks(), key=_name)]
    text = "\n".join(parts)
    left_out = len(text) - MAX_CHARS
    return text if left_out <= 0 else f"{text[:MAX_CHARS]}\n... {left_out} more characters"


def _frames(frame: FrameType) -> str:
    return "".join(traceback.format_stack(frame))


def _task(task: "asyncio.Task[object]") -> str:
    written = io.StringIO()
    task.print_stack(file=written)
    return written.getvalue()


def _name(task: "asyncio.Task[object]") -> str:
    return task.get_name()
