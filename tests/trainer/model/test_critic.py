import pytest
import torch
from transformers import AutoModelForTokenClassification

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.model.critic import Critic
from asyncrl.trainer.packing.batch import collate

CPU = torch.device("cpu")


def learn(critic: Critic, samples, steps: int) -> float:
    """Fit a value of 1 everywhere; the error before the last step."""
    for _ in range(steps):
        error = (critic.values(collate(samples, device=CPU)) - 1.0).square().mean()
        error.backward()
        critic.step(error.item())
    return error.item()


def test_a_critic_that_has_seen_nothing_expects_nothing(config, model_path, make_samples) -> None:
    batch = collate(make_samples(), device=CPU)
    values = Critic(config(), model_path).values(batch)
    assert values.shape == batch.token_ids.shape
    assert not values.any()


def test_values_are_of_the_state_before_each_token_of_each_trajectory_alone(config, save_model, make_samples) -> None:
    samples, path = make_samples(), save_model()
    critic = Critic(config(), path)
    torch.nn.init.normal_(critic.model.score.weight)
    values = critic.values(collate(samples, device=CPU)).split([len(sample.completion_ids) for sample in samples])

    body = critic.model.base_model
    for sample, got in zip(samples, values, strict=True):
        ids = torch.tensor([*sample.prompt_ids, *sample.completion_ids])[None]
        states = body(input_ids=ids, use_cache=False).last_hidden_state[0]
        before = states[len(sample.prompt_ids) - 1 : -1]
        torch.testing.assert_close(got, critic.model.score(before)[:, 0], rtol=1e-5, atol=1e-5)


def test_it_learns_what_it_is_shown(config, model_path, make_samples) -> None:
    critic = Critic(config(algorithm={"advantage": "gae"}, critic={"lr": 1e-2}), model_path)
    assert learn(critic, make_samples(), steps=12) < 0.1


def test_it_goes_on_exactly_where_a_checkpoint_left_off(config, model_path, make_samples) -> None:
    samples, settings = make_samples(), config(algorithm={"advantage": "gae"}, critic={"lr": 1e-2})
    first, second = Critic(settings, model_path), Critic(settings, model_path)
    learn(first, samples, steps=2)
    second.restore(first.tensors())
    assert learn(second, samples, steps=3) == learn(first, samples, steps=3)


def test_a_checkpoint_of_another_model_is_refused(config, model_path, save_model) -> None:
    small = Critic(config(), save_model(num_hidden_layers=1))
    with pytest.raises(LedgerError, match=r"model\.layers\.1"):
        Critic(config(), model_path).restore(small.tensors())


def test_a_checkpoint_without_a_critic_is_refused(config, model_path) -> None:
    with pytest.raises(LedgerError, match=r"the critic's .* is not in the checkpoint"):
        Critic(config(), model_path).restore({})


def test_a_saved_critic_keeps_its_head(config, model_path, make_samples, tmp_path) -> None:
    batch, critic = collate(make_samples(), device=CPU), Critic(config(), model_path)
    torch.nn.init.normal_(critic.model.score.weight)
    critic.model.save_pretrained(tmp_path)
    torch.testing.assert_close(Critic(config(), tmp_path).values(batch), critic.values(batch))


def test_nothing_to_value_still_gives_every_parameter_a_gradient(config, model_path) -> None:
    critic = Critic(config(), model_path)
    critic.values(collate([], device=CPU)).sum().backward()
    assert critic.step(0.0) == {"critic_grad_norm": 0.0, "critic_skipped": 0.0}


def test_a_model_with_several_labels_is_no_critic(config, model_path, tmp_path) -> None:
    AutoModelForTokenClassification.from_pretrained(model_path, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="critic"):
        Critic(config(), tmp_path)
