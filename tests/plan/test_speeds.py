"""Interpolation between measured points."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.plan.speeds import TrainingSpeed, decode_line


def test_a_decode_step_lies_on_the_line_between_measured_ones_and_beyond():
    line = decode_line([(1, 100), (11, 550)])  # 10 ms and 20 ms
    assert [line.at(running) for running in (1, 6, 11, 21)] == pytest.approx([0.01, 0.015, 0.02, 0.03])


def test_three_points_bend():
    line = decode_line([(30, 500), (10, 500), (20, 500)])  # 20, 40, 60 ms in any order
    assert [line.at(running) for running in (5, 15, 25, 40)] == pytest.approx([0.01, 0.03, 0.05, 0.08])


def test_one_point_of_decoding_is_a_step_of_one_length():
    assert decode_line([(4, 40)]).at(100) == pytest.approx(0.1)


def test_one_point_of_training_scales_with_the_devices():
    speed = TrainingSpeed([(8, 0.001)])
    assert [speed.seconds(1000, devices) for devices in (4, 8, 16)] == pytest.approx([2.0, 1.0, 0.5])


def test_two_points_of_training_show_what_does_not_scale():
    speed = TrainingSpeed([(1, 0.5), (2, 0.3)])  # 0.1 + 0.4 / devices
    assert speed.seconds(1, 4) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(1, 100), (1, 200)], "two points have the same first number"),
        ([(1, 10), (10, 1000)], r"0\.1 s with 1 running and 0\.01 s with 10, but more cannot make it shorter"),
    ],
)
def test_contradictory_points_are_refused(points, message):
    with pytest.raises(ConfigError, match=message):
        decode_line(points)
