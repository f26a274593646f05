"""Order of events."""

from functools import partial

from asyncrl.plan.simulated.event_queue import EventQueue


def test_events_happen_in_order_of_time_and_then_of_asking():
    events = EventQueue()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> None:
        seen.append((events.now_s, name))

    for name, seconds in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        events.after(seconds, partial(note, name))
    assert len(events) == 3
    while events.advance():
        pass
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]
    assert not events.advance()
