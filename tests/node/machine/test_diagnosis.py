from asyncrl.node.machine.diagnosis import Diagnosis, Line


def test_only_bad_lines_are_problems_in_their_order() -> None:
    lines = (
        Line("machine", "cache", "bad", "read-only", "the cache is read-only"),
        Line("installed", "vllm", "absent", "not installed", "not needed"),
        Line("collectives", "gloo", "good", "works"),
        Line("roles", "trainer", "bad", "needs torch", "the trainer needs torch"),
    )
    assert Diagnosis(lines, is_fit=False).problems == ["the cache is read-only", "the trainer needs torch"]


def test_a_problem_of_several_checks_is_told_once() -> None:
    lines = [Line("run", name, "bad", "see below", "no device is here") for name in ("devices", "engine")]
    assert Diagnosis(tuple(lines), is_fit=False).problems == ["no device is here"]
