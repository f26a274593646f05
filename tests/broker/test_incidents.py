from datetime import datetime

from asyncrl.broker.metrics.incidents import KEPT, MAX_CHARS, SAME_S, IncidentBook
from asyncrl.messages.supervisor import Incident


def test_a_death_is_told_with_its_cause_and_its_age() -> None:
    book = IncidentBook()
    book.add("node.lost", {"node": "rollout-1", "role": "rollout", "cause": "silent for 10 s"}, 20.0)
    assert book.told(32.0) == [Incident("rollout-1 was lost: silent for 10 s", 12.0)]


def test_the_same_sentence_is_counted_and_the_newest_comes_first() -> None:
    book = IncidentBook()
    for time_s, reason in ((1.0, "zero_variance"), (2.0, "dead_letter"), (3.0, "zero_variance")):
        book.add("group.dropped", {"reason": reason}, time_s)
    assert book.told(3.0) == [
        Incident("group dropped: zero_variance", 0.0, 2),
        Incident("group dropped: dead_letter", 1.0),
    ]


def test_an_event_that_carries_its_whole_count_replaces_the_one_before() -> None:
    book = IncidentBook()
    for count in (1, 9):
        book.add("units.failed", {"stage": "reward", "cause": "KeyError", "count": count}, 5.0)
    assert book.told(5.0) == [Incident("failed reward: KeyError", 0.0, 9)]


def test_a_node_that_is_back_ends_its_death() -> None:
    book = IncidentBook()
    book.add("node.exited", {"node": "trainer-0", "cause": "was killed by SIGKILL", "restarting": True}, 1.0)
    book.add("node.returned", {"node": "trainer-0", "away_s": 30.2, "step": 250}, 31.2)
    assert [one.sentence for one in book.told(40.0)] == [
        "trainer-0 is back after 30.2 s",
        "trainer-0 was killed by SIGKILL",
    ]


def test_a_node_that_an_error_ended_is_an_incident_and_one_that_was_done_is_none() -> None:
    book = IncidentBook()
    for cause in ("done", "told to stop", "ConfigError: model.path is not that of the run"):
        book.add("node.left", {"node": "gpu2-rollout", "role": "rollout", "cause": cause}, 3.0)
    assert book.told(3.0) == [Incident("gpu2-rollout left: ConfigError: model.path is not that of the run", 0.0)]


def test_what_is_no_incident_and_what_an_operator_does_are_left_out() -> None:
    book = IncidentBook()
    book.add("version.live", {"policy_version": 3}, 1.0)
    for kind in ("node.quiet", "node.lost"):
        book.add(kind, {"node": "operator-7", "role": "supervisor", "cause": "silent"}, 1.0)
    assert book.told(2.0) == []


def test_the_oldest_are_forgotten() -> None:
    book = IncidentBook()
    for number in range(KEPT + 3):
        book.add("node.quiet", {"node": f"rollout-{number}"}, float(number))
    told = book.told(100.0)
    assert (len(told), told[-1].sentence) == (KEPT, "rollout-3 fell silent")


def test_incidents_of_an_earlier_life_of_the_broker_are_told_and_a_missing_field_is_a_question_mark() -> None:
    at = "2026-01-31T20:12:24.000Z"
    book = IncidentBook([{"event": "node.exited", "node": "trainer-0", "at": at}, {"event": "run.started", "at": at}])
    stopped_s = 149.0
    assert book.told(datetime.fromisoformat(at).timestamp() + stopped_s) == [Incident("trainer-0 ?", stopped_s)]


def test_what_follows_from_a_death_is_counted_with_it_whether_told_before_or_after() -> None:
    book = IncidentBook()
    book.add("transfer.failed", transfer_failed("rollout-0", "rollout-1 closed its connection"), 9.0)
    book.add("transfer.failed", transfer_failed("rollout-0", "with rollout-11: timeout"), 9.0)
    book.add("node.exited", {"node": "rollout-1", "cause": "was killed by SIGKILL", "restarting": True}, 10.0)
    book.add("node.lost", {"node": "rollout-1", "role": "rollout", "cause": "was killed by SIGKILL"}, 10.0)
    book.add("transfer.aborted", {"cause": "rollout-1 was lost"}, 11.0)
    book.add("transfer.failed", transfer_failed("trainer-0", "rollout-1 was lost", role="trainer"), 11.0)
    book.add("node.returned", {"node": "rollout-1", "away_s": 3}, 13.0)
    book.add("transfer.aborted", {"cause": "rollout-1 was silent"}, 10.0 + 2 * SAME_S)
    assert [one.sentence for one in book.told(200.0)] == [
        "weight transfer given up: rollout-1 was silent",
        "rollout-1 is back after 3 s",
        "rollout-1 was killed by SIGKILL (and 4 that follow from it)",
        "rollout-0 failed to receive weights: with rollout-11: timeout",
    ]


def test_a_trainer_fails_to_send_weights_and_a_rollout_to_receive_them() -> None:
    book = IncidentBook()
    book.add("transfer.failed", transfer_failed("trainer-0", "timeout", role="trainer"), 1.0)
    book.add("transfer.failed", transfer_failed("rollout-0", "timeout"), 2.0)
    assert [one.sentence for one in book.told(2.0)] == [
        "rollout-0 failed to receive weights: timeout",
        "trainer-0 failed to send weights: timeout",
    ]


def test_a_long_sentence_is_cut_between_words() -> None:
    book = IncidentBook()
    book.add("node.left", {"node": "a", "role": "rollout", "cause": "word-1 " * 100}, 1.0)
    (one,) = book.told(1.0)
    assert one.sentence.endswith("word-1 …")
    assert len(one.sentence) <= MAX_CHARS


def test_the_last_start_of_the_broker_is_an_incident() -> None:
    book = IncidentBook()
    for start in (2, 3):
        book.add("run.resumed", {"name": "run", "window": 4, "start": start}, float(start))
    assert book.told(3.0) == [Incident("the broker was started again (start 3 of this run)", 0.0)]


def transfer_failed(node: str, cause: str, role: str = "rollout") -> dict[str, object]:
    return {"node": node, "role": role, "policy_version": 3, "cause": cause}
