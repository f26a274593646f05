"""
`asyncrl top`: the state of a run again and again, until it is over.

    terminal ─▶ a screen of its own, redrawn; the last state stays when it ends
    pipe     ─▶ one block of lines for each look
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TextIO

from asyncrl.cli.operate.session import operator
from asyncrl.cli.operate.status import RunState, run_state
from asyncrl.cli.operate.status_lines import state_lines
from asyncrl.client.run_address import locate
from asyncrl.errors import LinkError
from asyncrl.foreign_text import escaped
from asyncrl.messages.supervisor import Status, StatusWanted

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Codes that open and close the screen of a full-screen program; the cursor is hidden in it."""
REDRAW = "\x1b[H\x1b[J"


async def states(
    where: str, key: Path | None, every_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[RunState]:
    """
    State of a run, every ``every_s`` seconds, until it is over; the last one is from its files, if they are here.

    Raises as `run_state`, and `LinkError` if the broker at an address is lost.
    """
    while True:
        state = await run_state(where, key)
        yield state
        if state.files and not state.is_supervised and state.files.status != "running":
            return
        if state.live:
            try:
                async with operator(locate(where, key)) as session:
                    while True:
                        await session.pause(every_s)
                        yield RunState(live=await session.ask(StatusWanted(), Status))
            except LinkError:
                if "://" in where:
                    raise
        await sleep(every_s)


class Display:
    """Draws blocks of lines: on a terminal each over the last, otherwise one after another."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._last: list[str] = []

    def __enter__(self) -> "Display":
        self._write(OPEN if self._is_terminal else "")
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(CLOSE + "".join(f"{line}\n" for line in self._last))

    def draw(self, lines: list[str]) -> None:
        self._last = lines = [escaped(line) for line in lines]
        if self._is_terminal:
            columns, rows = shutil.get_terminal_size()
            self._write(REDRAW + "\n".join(cropped(lines, columns, rows)))
        else:
            self._write("".join(f"{line}\n" for line in [*lines, ""]))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def cropped(lines: list[str], columns: int, rows: int) -> list[str]:
    """Lines that fit on a screen; the last one says how many do not."""
    hidden = len(lines) - rows
    shown = lines if hidden <= 0 else [*lines[: rows - 1], f"... {hidden + 1} more lines"]
    return [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in shown]


async def top(where: str, key: Path | None, every_s: float, display: Display) -> None:
    """Show a run until it is over. Raises as `states`."""
    async for state in states(where, key, every_s):
        display.draw([*state_lines(state, where), *([state.unasked] if state.unasked else [])])
