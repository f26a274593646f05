"""What a lease says: the prompt, how to sample it, and with which seeds."""

from asyncrl.broker.groups.group import Group
from asyncrl.broker.leases.lease import OpenLease
from asyncrl.config.sections import Config
from asyncrl.messages import Lease, ResumePoint, Sampling, Split


def lease_message(config: Config, group: Group, lease: OpenLease) -> Lease:
    """The message that grants ``lease`` on ``group``."""
    return Lease(
        lease_id=lease.lease_id,
        group_id=group.group_id,
        indices=list(lease.open),
        split=group.split,
        prompt=group.prompt,
        sampling=_sampling(config, group.split),
        seed=sampling_seed(config.run.seed, group.group_id, group.size),
        max_prompt_tokens=config.data.max_prompt_tokens,
        expires_in_s=config.schedule.lease_s,
        truncation=config.data.truncation,
        greedy=[index for index in lease.open if index >= group.size - group.num_greedy],
        resume_from=[ResumePoint(index, ref) for index in lease.open if (ref := group.slots[index].ref)],
    )


def sampling_seed(run_seed: int, group_id: int, group_size: int) -> int:
    """Seed of index 0 of a group; index i has ``+ i``. Distinct for every trajectory of a split, below 2**63."""
    return ((run_seed << 40) + group_id * group_size) & (2**63 - 1)


def _sampling(config: Config, split: Split) -> Sampling:
    training = config.sampling
    return config.evaluation.sampling(training) if split == "held_out" else training.sampling()
