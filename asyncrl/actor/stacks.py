"""Stacks of this process in words: where each thread is, and what each asyncio task waits for."""

import asyncio
import sys
import threading
import traceback
from types import FrameType
from typing import Any

MAX_CHARS = 200_000
"""Length of the text; the rest is left out, and counted."""
MAX_FRAMES = 100
"""Frames of one task."""
FRAMES, AWAITED = ("cr_frame", "gi_frame", "ag_frame"), ("cr_await", "gi_yieldfrom", "ag_await")
"""Attributes of coroutines, generators and asynchronous generators: their frame, and what they wait for."""


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
    """Frames of a task from its coroutine down to what that awaits; `Task.get_stack` has the first of them only."""
    frames: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < MAX_FRAMES:
        frame = next((found for name in FRAMES if (found := getattr(awaited, name, None))), None)
        if frame is not None:
            frames += traceback.extract_stack(frame, limit=1)
        awaited = next((found for name in AWAITED if (found := getattr(awaited, name, None)) is not None), None)
    return "".join(traceback.format_list(frames))


def _name(task: "asyncio.Task[object]") -> str:
    return task.get_name()
