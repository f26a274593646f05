import asyncio
import io
from pathlib import Path

import pytest

from asyncrl.cli.operate import top as module
from asyncrl.cli.operate.status import RunState
from asyncrl.cli.operate.top import CLOSE, OPEN, REDRAW, Display, cropped, states
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import LinkError
from asyncrl.messages.supervisor import Finished, Status, StatusWanted
from asyncrl.observe.run_overview import RunOverview
from tests.cli.operate.conversation import with_broker

LIVE = RunState(live=Status("tiny", "running", 1, 4, 0, 4, 0, 2, {}, []))
OVER = RunState(
    files=RunOverview(run="tiny", status="finished", step=4, steps=4, reward=1.0, base_accuracy=None, accuracy=None)
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def watched(where: str, *looks: RunState, monkeypatch: pytest.MonkeyPatch) -> list[RunState]:
    """States of a run whose first looks are these; the broker ends the run at the second question of a session."""
    following = iter(looks)

    async def look(_where: str, _key: Path | None) -> RunState:
        return next(following)

    async def command(run: RunAddress) -> list[RunState]:
        monkeypatch.setattr(module, "run_state", look)
        monkeypatch.setattr(module, "locate", lambda *_: run)
        return [state async for state in states(where, None, 0.001)]

    assert LIVE.live
    answers = {StatusWanted: [LIVE.live, Finished("finished", "")]}
    return (await with_broker(command, answers))[0]


def test_a_run_is_watched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(watched("runs/tiny", LIVE, OVER, monkeypatch=monkeypatch)) == [LIVE, LIVE, OVER]


def test_a_run_that_is_over_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(watched("runs/tiny", OVER, monkeypatch=monkeypatch)) == [OVER]


def test_the_end_of_a_run_at_an_address_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LinkError, match="the run has just ended: finished"):
        asyncio.run(watched("tcp://broker:1", LIVE, monkeypatch=monkeypatch))


def test_without_a_terminal_blocks_follow_each_other() -> None:
    out = io.StringIO()
    with Display(out) as display:
        display.draw(["a", "b"])
        display.draw(["c"])
    assert out.getvalue() == "a\nb\n\nc\n\n"


def test_a_terminal_is_redrawn_and_keeps_the_last_block() -> None:
    out = Terminal()
    with Display(out) as display:
        display.draw(["first"])
        display.draw(["last"])
    assert out.getvalue() == f"{OPEN}{REDRAW}first{REDRAW}last{CLOSE}last\n"


def test_what_does_not_fit_a_screen_is_cut_and_counted() -> None:
    assert cropped(["123456", "b", "c", "d"], columns=5, rows=3) == ["1234…", "b", "... 2 more lines"[:4] + "…"]
    assert cropped(["12345", "b"], columns=5, rows=2) == ["12345", "b"]
