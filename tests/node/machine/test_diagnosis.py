from asyncrl.node.machine.diagnosis import Diagnosis, Line


def test_only_bad_lines_are_problems_in_their_order() -> None:
    lines = (
        Line("machine", "cache", "bad", "read-only", "the cache is read-only"),
        Line("installed", "vllm", "absent", "not installed", "not needed"),
        Line("collectives", "gloo", "good", "works"),
        Line("roles", "trainer", "bad", "needs torch", "the trainer needs torch"),
    )
    assert Diagnosis(lines, is_fit=False).problems == ["the cache is read-only", "the trainer needs torch"]
