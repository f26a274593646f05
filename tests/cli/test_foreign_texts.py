"""What a reward raises, or a node says, is shown and never obeyed: on every screen, in every table, log and page."""

import io
import json
from collections.abc import Callable
from unicodedata import category

import pytest
from msgspec.structs import replace
from rich.console import Console

from asyncrl.broker.failures import EVENT, FailureBook
from asyncrl.broker.ledger.reader import DeadLetter
from asyncrl.cli.inspect import audit_table, dead_letter_table
from asyncrl.cli.logs import LogLine, event_lines, log_lines
from asyncrl.cli.status import Display, live_lines
from asyncrl.messages.supervisor import Incident, NodeStatus, Status
from asyncrl.runtime.screen import Screen
from asyncrl.terminal import echo
from asyncrl.tools.report import report
from tests.cli.test_inspect import AUDIT

ACTS = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m \x9b31m \u202e \u2066 \u200e \u061c \u2028 \ud800 \u200b \U000e0041 \r\b"
RAISED = f"ValueError: {ACTS} (score.py:12)"
DECODED = RAISED.replace("\ud800", "")
"""What a file of JSON can hold: no lone surrogate."""
LONG = RAISED + "x" * 90_000


def obeyed(text: str) -> set[str]:
    """Characters of an output, but for the ends of its lines, that a terminal obeys or a reader does not see."""
    return {letter for letter in text if category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - {"\n"}


def letter(reason: str) -> DeadLetter:
    return DeadLetter(split="train", group_id=1, index=0, epoch=0, row=3, stage="reward", attempts=3, reason=reason)


def screen(show: Callable[[Screen], None]) -> str:
    out = io.StringIO()
    show(Screen(Console(file=out, force_terminal=False, width=80), steps=4))
    return out.getvalue()


def status() -> Status:
    nodes = [NodeStatus("rollout-0", "rollout", "waiting", ACTS, still=ACTS)]
    return Status("run", "running", 1, 2, 0, 4, 0, 2, {}, nodes, incidents=[Incident(RAISED, 1.0)], notes=[ACTS])


def failures() -> dict[str, int]:
    book = FailureBook()
    book.count("reward", LONG)
    return book.counts


VIEWS: dict[str, Callable[[], str]] = {
    "dead-letters": lambda: dead_letter_table([letter(LONG), letter("plain")]),
    "audit": lambda: audit_table(replace(AUDIT, dropped={LONG: 2}, failed_attempts={LONG: 1}, problems=[LONG])),
    "events": lambda: "\n".join(event_lines([{"at": "now", "event": EVENT, "cause": DECODED, DECODED: DECODED}])),
    "status": lambda: "\n".join(live_lines(status())),
    "logs": lambda: "\n".join(
        log_lines(
            [LogLine("", "r", ACTS), LogLine("", "r", json.dumps({"event": "printed", "text": ACTS + "\n"}))],
            as_json=False,
            names_node=True,
        )
    ),
}
"""Tables and lines as a command makes them, before they are printed."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_table_of_a_command_shows_what_acts(view: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(VIEWS[view]())
    printed = capsys.readouterr().out
    assert obeyed(printed) == set()
    assert "\\x1b" in printed or "\\u001b" in printed
    assert max(map(len, printed.splitlines())) < 5000


def test_the_screen_of_a_run_shows_what_acts() -> None:
    for show in (
        lambda s: s.exited("reward-0", RAISED, restarting=True),
        lambda s: s.say(f"a note: {ACTS}"),
        lambda s: s.departed(ACTS),
        lambda s: s.failures(failures(), {"reward": 3}),
    ):
        printed = screen(show)
        assert obeyed(printed) == set()
        assert "\\x1b" in printed


def test_a_terminal_that_top_redraws_gets_only_its_codes() -> None:
    out = io.StringIO()
    Display(out).draw([ACTS])
    assert obeyed(out.getvalue()) == set()


def test_a_page_shows_what_acts() -> None:
    made = report.page(ACTS, [report.text(ACTS), report.table([ACTS], [[ACTS]]), report.folded(ACTS, report.text("x"))])
    assert obeyed(made) == set()
    assert made.count("\\x1b]0;OWNED") == 5


def test_a_cause_of_failures_is_short_and_shows_what_acts() -> None:
    (cause,) = failures()
    assert obeyed(cause) == set()
    assert len(cause) < 500
