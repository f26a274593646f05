from typing import Any

import pytest

from asyncrl.records.events import news, weighed


def event(kind: str, second: int = 0, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "at": f"2026-01-31T12:00:{second:02}.000Z", **fields}


def node(kind: str, second: int = 0, name: str = "rollout-0") -> dict[str, Any]:
    return event(f"node.{kind}", second, node=name)


def ends(*events: dict[str, Any]) -> list[str]:
    return [one.end for one in weighed(events)]


def test_a_trouble_that_ended_says_how_long_it_lasted() -> None:
    assert ends(node("stalled", 3), node("moving", 15)) == ["over after 12.0 s", ""]
    assert ends(node("stalled", 3), node("moving", 15, "rollout-1")) == ["", ""]
    assert ends(node("lost", 3), node("joined", 5), node("ready", 8), node("returned", 9))[0] == "over after 6.0 s"
    assert ends(node("lost", 1), event("run.finished", 9, status="finished"))[0] == "over"


def test_a_wait_for_a_role_ends_when_a_node_of_it_joins() -> None:
    waits = event("run.waiting", 3, role="rollout")
    assert ends(waits, node("joined", 5) | {"role": "trainer"})[0] == ""
    assert ends(waits, node("joined", 5) | {"role": "rollout"})[0] == "over after 2.0 s"
    assert ends(waits, event("version.live", 9))[0] == "over after 6.0 s"


def test_each_of_several_losses_ends_with_its_own_return() -> None:
    first, second = [node("lost", 1), node("joined", 4)], [node("lost", 10), node("joined", 12), node("returned", 16)]
    assert ends(*first, *second) == ["over after 3.0 s", "", "over after 6.0 s", "", ""]


def test_a_stall_is_trouble_and_so_is_an_alarm() -> None:
    found = weighed([node("stalled"), node("barred"), event("signal.none"), event("ledger.locked")])
    assert [one.weight for one in found] == ["trouble"] * 4


def test_a_death_that_is_noticed_twice_is_told_once() -> None:
    both = [node("exited"), node("lost"), node("joined"), node("lost")]
    assert [one.is_echo for one in weighed(both)] == [False, True, False, False]


def test_an_end_of_an_earlier_life_is_marked_whatever_its_outcome() -> None:
    for status, weight in (("interrupted", "over"), ("finished", "news")):
        end, begin = weighed([event("run.finished", 3, status=status), event("run.resumed", 10)])
        assert (end.weight, end.end, begin.end) == (weight, "the run was resumed after 7.0 s", "")


def test_what_is_waited_for_is_no_routine() -> None:
    finished = event("eval.finished", policy_version=6, accuracy=0.25, num_prompts=64, reward=0.5)
    assert weighed([finished])[0].weight == "news"
    assert news(finished) == "v6: accuracy 25.0 % of 64 prompts, reward 0.5"


def test_an_event_of_another_version_that_lacks_a_field_is_told_all_the_same() -> None:
    assert news({"event": "trainer.resumed"}) == "the trainer has loaded the weights after step ?: ?"
    assert news({"event": "unheard.of"}) == ""
    assert [one.end for one in weighed([{"event": "node.lost", "node": 3}, {}, {"event": ["x"], "at": 7}])] == [
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("trouble", "end"),
    [("transfer.failed", "version.live"), ("upload.failed", "version.uploaded")],
)
def test_what_went_well_at_last_is_no_trouble_any_more(trouble: str, end: str) -> None:
    failed = event(trouble, 1, node="rollout-0")
    assert [one.weight for one in weighed([failed])] == ["trouble"]
    assert [one.end for one in weighed([failed, event(end, 3)])][:1] == ["over after 2.0 s"]


def test_a_spool_is_away_until_it_is_back_itself() -> None:
    events = [event("spool.away", 1, spool="a"), event("spool.back", 2, spool="b"), event("spool.back", 3, spool="a")]
    assert weighed(events[:2])[0].weight == "trouble"
    assert weighed(events)[0].end == "over after 2.0 s"


def test_an_alarm_about_learning_lasts_until_a_step_is_well_again_whatever_the_run_has_reached() -> None:
    finished = event("run.finished", 9, status="finished")
    (alarm, _) = weighed([event("signal.none", 2), finished])
    assert (alarm.weight, alarm.ended) == ("trouble", False)
    (alarm, *_) = weighed([event("signal.none", 2), event("signal.back", 6), finished])
    assert (alarm.weight, alarm.end) == ("over", "over after 4.0 s")
