from collections.abc import Sequence

import pytest
import torch
from transformers import AutoModelForTokenClassification

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.model.critic import ValueModel
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory

CPU = torch.device("cpu")


def learn(critic: ValueModel, trajectories: Sequence[TrainingTrajectory], steps: int) -> float:
    """Fit a value of 1 everywhere, and return the error before the last step."""
    for _ in range(steps):
        error = (critic.values(collate(trajectories, device=CPU)) - 1.0).square().mean()
        error.backward()
        critic.step(error.item())
    return error.item()


def test_an_untrained_critic_predicts_zero(config, model_path, make_trajectories):
    batch = collate(make_trajectories(), device=CPU)
    values = ValueModel(config(), model_path).values(batch)
    assert values.shape == batch.token_ids.shape
    assert not values.any()


def test_values_are_of_the_state_before_each_token_of_each_trajectory_alone(config, save_model, make_trajectories):
    trajectories, path = make_trajectories(), save_model()
    critic = ValueModel(config(), path)
    torch.nn.init.normal_(critic.model.score.weight)
    values = critic.values(collate(trajectories, device=CPU)).split(
        [len(trajectory.completion_ids) for trajectory in trajectories]
    )

    body = critic.model.base_model
    for trajectory, got in zip(trajectories, values, strict=True):
        ids = torch.tensor([*trajectory.prompt_ids, *trajectory.completion_ids])[None]
        states = body(input_ids=ids, use_cache=False).last_hidden_state[0]
        before = states[len(trajectory.prompt_ids) - 1 : -1]
        torch.testing.assert_close(got, critic.model.score(before)[:, 0], rtol=1e-5, atol=1e-5)


def test_a_critic_fits_its_targets(config, model_path, make_trajectories):
    critic = ValueModel(config(algorithm={"advantage": "gae"}, critic={"lr": 1e-2}), model_path)
    assert learn(critic, make_trajectories(), steps=12) < 0.1


def test_a_restored_critic_continues_bit_for_bit(config, model_path, make_trajectories):
    trajectories, settings = make_trajectories(), config(algorithm={"advantage": "gae"}, critic={"lr": 1e-2})
    first, second = ValueModel(settings, model_path), ValueModel(settings, model_path)
    learn(first, trajectories, steps=2)
    second.restore(first.tensors())
    assert learn(second, trajectories, steps=3) == learn(first, trajectories, steps=3)


def test_a_checkpoint_of_another_model_is_refused(config, model_path, save_model):
    small = ValueModel(config(), save_model(num_hidden_layers=1))
    with pytest.raises(LedgerError, match=r"model\.layers\.1"):
        ValueModel(config(), model_path).restore(small.tensors())


def test_a_checkpoint_without_a_critic_is_refused(config, model_path):
    with pytest.raises(LedgerError, match=r"the checkpoint has no critic weight"):
        ValueModel(config(), model_path).restore({})


def test_a_saved_critic_keeps_its_head(config, model_path, make_trajectories, tmp_path):
    batch, critic = collate(make_trajectories(), device=CPU), ValueModel(config(), model_path)
    torch.nn.init.normal_(critic.model.score.weight)
    critic.model.save_pretrained(tmp_path)
    torch.testing.assert_close(ValueModel(config(), tmp_path).values(batch), critic.values(batch))


def test_nothing_to_value_still_gives_every_parameter_a_gradient(config, model_path):
    critic = ValueModel(config(), model_path)
    critic.values(collate([], device=CPU)).sum().backward()
    assert critic.step(0.0) == {"critic_grad_norm": 0.0, "critic_skipped": 0.0}


def test_a_model_with_several_labels_is_no_critic(config, model_path, tmp_path):
    AutoModelForTokenClassification.from_pretrained(model_path, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="critic"):
        ValueModel(config(), tmp_path)
