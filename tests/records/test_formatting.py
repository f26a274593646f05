import pytest

from asyncrl.records import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.5, "0.500"), (999, "999"), (999.7, "1.00k"), (1234, "1.23k"), (45_600, "45.6k"),
     (7_890_000, "7.89M"), (2.5e9, "2.50G"), (-1234, "-1.23k")],
)  # fmt: skip
def test_a_count_has_three_figures(value: float, text: str) -> None:
    assert formatting.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (6.5, "6.5 s"),
        (59.96, "1 min 0 s"),
        (412, "6 min 52 s"),
        (3599.7, "1 h 0 min"),
        (8050, "2 h 14 min"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_a_share_is_a_percentage() -> None:
    assert formatting.share(0.125) == "12.5 %"


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(0, 0.2, "0"), (0.4, 0.2, "0.4"), (1.0, 0.25, "1.00"), (30, 10, "30"), (20_000, 10_000, "20k"),
     (2500, 500, "2.5k"), (1_000_002, 1, "1000002"), (2e-6, 1e-6, "2e-6"), (1.5e-6, 5e-7, "1.5e-6"),
     (1e-5, 2e-6, "1.0e-5"), (0.0004, 0.0002, "0.0004")],
)  # fmt: skip
def test_a_tick_has_the_decimals_its_neighbours_ask_for(value: float, step: float, text: str) -> None:
    assert formatting.tick(value, step) == text


@pytest.mark.parametrize(("value", "step", "text"), [(0, 0.2, "0 %"), (0.4, 0.2, "40 %"), (0.005, 0.005, "0.5 %")])
def test_a_tick_may_be_a_percentage(value: float, step: float, text: str) -> None:
    assert formatting.tick(value, step, percent=True) == text


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [formatting.counted(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
