"""Order of events."""

from asyncrl.plan.simulated.agenda import Agenda


def test_events_happen_in_order_of_time_and_then_of_asking():
    agenda, seen = Agenda(), []
    for name, seconds in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        agenda.after(seconds, lambda name=name: seen.append((agenda.now_s, name)))
    assert len(agenda) == 3
    while agenda.advance():
        pass
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]
    assert not agenda.advance()
