from asyncrl.rollout.episodes.tool_calls.found import MAX_CALLS, Call, UnreadableCall, between, to_call


def read(block: str) -> Call:
    if block == "bad":
        raise UnreadableCall("is bad")
    return block, {}


def test_content_is_the_text_around_calls() -> None:
    found = between("Look. <a>x</a> then <a>y</a>", "<a>", "</a>", read)
    assert found.content == "Look.  then"
    assert [call.name for call in found.calls] == ["x", "y"]


def test_what_cannot_be_read_stays_in_the_content_as_does_what_follows() -> None:
    assert (
        between("Look. <a>bad</a> then <a>y</a> and on", "<a>", "</a>", read).content == "Look. <a>bad</a> then  and on"
    )


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    found = between("<a>x <a>y</a>", "<a>", "</a>", read)
    assert [(call.name, call.problem) for call in found.calls] == [("", "the call is not closed by </a>"), ("y", "")]
    assert found.content == "<a>x"


def test_a_call_inside_another_is_a_part_of_it() -> None:
    (call,) = between("<a>x <a>y</a> z</a>", "<a>", "</a>", read).calls
    assert call.name == "x <a>y</a> z"


def test_a_call_that_cannot_be_read_is_a_problem_beside_the_others() -> None:
    assert [call.problem for call in between("<a>bad</a><a>x</a>", "<a>", "</a>", read).calls] == [
        "the call is bad",
        "",
    ]


def test_a_call_that_is_cut_is_a_problem() -> None:
    found = between("Look. <a>x</a><a>y", "<a>", "</a>", read)
    assert [call.problem for call in found.calls] == ["", "the call is not closed by </a>"]


def test_calls_beyond_the_most_are_one_problem() -> None:
    calls = between("<a>x</a>" * (MAX_CALLS + 9), "<a>", "</a>", read).calls
    assert len(calls) == MAX_CALLS + 1
    assert calls[-1].problem == f"the turn has more than {MAX_CALLS} calls"


def test_a_call_has_name_and_arguments() -> None:
    assert to_call(lambda: ("f", {"a": 1})).arguments == {"a": 1}
