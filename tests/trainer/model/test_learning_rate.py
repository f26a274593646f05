import pytest

from asyncrl.config.sections.trainer import Trainer
from asyncrl.trainer.model.learning_rate import learning_rate


def rates(trainer: Trainer, num_steps: int) -> list[float]:
    return [learning_rate(step, trainer, num_steps) for step in range(num_steps)]


def test_warm_up_is_linear_and_never_zero() -> None:
    assert rates(Trainer(lr=4.0, warmup_steps=4), 6) == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


def test_cosine_falls_from_the_end_of_the_warm_up() -> None:
    trainer = Trainer(lr=1.0, warmup_steps=1, lr_schedule="cosine")
    # progress 0, 1/4, 1/2, 3/4 of half a cosine
    assert rates(trainer, 5) == pytest.approx([1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_cosine_ends_at_its_floor_and_stays_there() -> None:
    trainer = Trainer(lr=2.0, lr_schedule="cosine", min_lr_ratio=0.1)
    assert learning_rate(5, trainer, 10) == pytest.approx(2.0 * 0.55)
    assert learning_rate(10, trainer, 10) == learning_rate(99, trainer, 10) == pytest.approx(0.2)
