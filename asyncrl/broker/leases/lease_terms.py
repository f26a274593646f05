"""Contents of a `Lease` message: the prompt, the sampling parameters and the seed."""

from msgspec.structs import replace

from asyncrl.broker.groups.group import Group
from asyncrl.broker.leases.lease import OpenLease
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Lease, ResumePoint
from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import Sampling


def lease_message(
    config: Config,
    group: Group,
    lease: OpenLease,
    permit: Permit = Permit(),  # noqa: B008  immutable
) -> Lease:
    training, is_evaluation = config.sampling, group.split == "held_out"
    is_seeded = is_evaluation or training.seeded
    return Lease(
        lease_id=lease.lease_id,
        group_id=group.group_id,
        indices=list(lease.open),
        split=group.split,
        prompt=group.prompt,
        sampling=_sampling(config, group),
        seed=sampling_seed(config.run.seed, group.group_id, group.size) if is_seeded else None,
        max_prompt_tokens=config.data.max_prompt_tokens,
        expires_in_s=config.schedule.lease_s,
        truncation=config.data.truncation,
        greedy=[index for index in lease.open if index >= group.size - group.num_greedy],
        permit=permit,
        resume_from=[ResumePoint(index, ref) for index in lease.open if (ref := group.slots[index].ref)],
    )


def _sampling(config: Config, group: Group) -> Sampling:
    """Sampling of a group's trajectories; of those for training, with the masks and routes to record."""
    if group.split == "held_out":
        sampling = config.evaluation.sampling(config.sampling)
    else:
        sampling = replace(config.sampling.sampling(), replay_routes=config.rollout.replay_routes)
    return replace(sampling, max_tokens=group.max_tokens or sampling.max_tokens)


def sampling_seed(run_seed: int, group_id: int, group_size: int) -> int:
    """Seed of index 0 of a group; index i uses ``+ i``. Distinct for every trajectory of a split, below 2**63."""
    return ((run_seed << 40) + group_id * group_size) & (2**63 - 1)
