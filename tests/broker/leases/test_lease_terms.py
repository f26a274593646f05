"""A lease message has everything a rollout needs, with distinct seeds."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.groups.group import Group
from asyncrl.broker.leases.lease import LeaseBook
from asyncrl.broker.leases.lease_terms import lease_message, sampling_seed
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.messages.words import Split
from tests.broker.driver import a_config


def lease_on(split: Split, *, seeded: bool = True, **evaluation: object) -> Lease:
    config = a_config(
        sampling={
            "max_tokens": 9,
            "temperature": 0.7,
            "top_k": 5,
            "replay_mask": True,
            "stop": ["."],
            "seeded": seeded,
        },
        evaluation={"max_tokens": 20} | evaluation,
    )
    group = Group(3, Prompt(text="how many?"), 2, min_version=0, split=split)
    return lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 3, split, [1, 0], now_s=0.0))


def test_training_uses_the_sampling_of_the_run() -> None:
    lease = lease_on("train")

    assert lease.sampling == Sampling(9, 0.7, 1.0, 5, ["."], replay_mask=True)
    assert (lease.group_id, lease.indices, lease.prompt.text) == (3, [0, 1], "how many?")


def test_only_what_is_trained_on_records_experts() -> None:
    config = a_config(rollout={"replay_routes": True})

    def is_recorded(split: Split) -> bool:
        group = Group(3, Prompt(text="how many?"), 2, min_version=0, split=split)
        lease = lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 3, split, [1, 0], now_s=0.0))
        return lease.sampling.replay_routes

    assert is_recorded("train")
    assert not is_recorded("held_out")


def test_an_evaluation_is_greedy_over_everything_and_stops_at_the_same_strings() -> None:
    assert lease_on("held_out").sampling == Sampling(20, 0.0, 1.0, 0, ["."])


def test_an_evaluation_of_several_completions_uses_its_own_sampling() -> None:
    lease = lease_on("held_out", samples=4, temperature=0.6, top_p=0.95, top_k=20)
    assert lease.sampling == Sampling(20, 0.6, 0.95, 20, ["."])


def test_without_seeds_an_evaluation_still_has_its_own() -> None:
    assert lease_on("train", seeded=False).seed is None
    assert lease_on("held_out", seeded=False).seed == lease_on("train").seed == sampling_seed(0, 3, 2)


@given(st.integers(0, 2**20), st.integers(0, 2**20), st.integers(1, 64), st.data())
def test_no_two_trajectories_of_a_split_share_a_seed(run: int, group: int, size: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(0, 2**20).filter(lambda g: g != group))
    mine = {sampling_seed(run, group, size) + i for i in range(size)}
    theirs = {sampling_seed(run, other, size) + i for i in range(size)}

    assert not mine & theirs
    assert all(0 <= seed < 2**63 for seed in mine | theirs)


def test_the_greedy_baseline_is_the_last_of_its_group() -> None:
    config = a_config(algorithm={"advantage": "remax"})
    group = Group(4, Prompt(text="?"), 3, min_version=0, num_greedy=config.greedy_per_group)

    def greedy(*indices: int) -> list[int]:
        return lease_message(config, group, LeaseBook(1, 60.0).grant("ann", 4, "train", list(indices), 0.0)).greedy

    assert greedy(0, 1, 2) == [2]
    assert greedy(1) == []
