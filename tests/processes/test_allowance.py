"""Allowance of output: what is printed, what is cut, and the line that tells it."""

from asyncrl.processes.allowance import AT_ONCE_BYTES, NOTE_BYTES, PER_S_BYTES, OutputAllowance, refilled


def test_little_output_is_printed_whole_and_needs_no_line() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)

    assert [allowance.admit(1000, float(second)) for second in range(600)] == [1000] * 600
    assert allowance.note(600.0, last=True) == ""


def test_output_beyond_the_allowance_is_cut_and_one_line_tells_it() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)

    assert allowance.admit(10**9, 0.0) == AT_ONCE_BYTES - NOTE_BYTES
    note = allowance.note(0.0)
    assert f"{10**9 - AT_ONCE_BYTES + NOTE_BYTES:,} bytes of output were cut" in note
    assert note.startswith("\nreward worker: ")
    assert len(note) < NOTE_BYTES
    allowance.admit(10**9, 1.0)
    assert allowance.note(1.0) == ""  # once a minute is enough
    allowance.admit(10**9, 61.0)
    assert "1,999,9" in allowance.note(61.0)


def test_an_hour_of_prints_leaves_a_few_megabytes() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)
    printed = 0
    for tick in range(36_000):
        printed += allowance.admit(1 << 20, tick / 10) + len(allowance.note(tick / 10))

    assert printed < AT_ONCE_BYTES + 3600 * PER_S_BYTES


def test_workers_that_follow_each_other_share_the_allowance() -> None:
    assert refilled(0.0) == NOTE_BYTES
    assert refilled(10.0) == NOTE_BYTES + 10 * PER_S_BYTES
    assert refilled(1e9) == AT_ONCE_BYTES


def test_processes_that_were_left_behind_are_told_and_so_is_output_that_nobody_took() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)
    allowance.killed(3)
    allowance.dropped(7)

    assert "7 bytes of output were cut" in (note := allowance.note(5.0))
    assert "3 processes that the function left behind were killed" in note
    assert allowance.note(1000.0, last=True) == ""
