"""
Keys of a step's line in metrics.jsonl and what each means; the documentation's table is made from this one.

A line has the keys that apply to its run. ``*`` stands for names that a run, a verifier or a loss chooses.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from asyncrl.records.measures import RECENT

Subject = Literal["step", "batch", "pace", "update", "policies", "critic", "devices"]
LAST = f"of the last {RECENT} steps"


class StepKey(Struct, frozen=True):
    name: str
    subject: Subject
    meaning: str


def _about(subject: Subject, **meanings: str) -> list[StepKey]:
    return [StepKey(name, subject, meaning) for name, meaning in meanings.items()]


STEP_KEYS: Mapping[str, StepKey] = {
    key.name: key
    for key in (
        *_about(
            "step",
            step="The step, counted from 0; people count from 1, so step 10 on screens and pages is 9 here.",
            version="Policy version of the weights before it.",
            time_s="Seconds from the run's start to its end, by the broker.",
            ledger_records="Records of the ledger when the line was written.",
            failed="Attempts to sample or grade that failed since the step before.",
        ),
        *_about(
            "batch",
            reward="Mean reward of the batch's trajectories.",
            accuracy="Mean of what their verdicts call `correct`; of a verdict without it, of its reward.",
            length_mean="Mean tokens that the policy wrote in a trajectory.",
            length_max="Most of them.",
            truncated="Share of the trajectories that ended at a limit, right or not.",
            staleness_mean="Mean over trajectories: versions between that of its oldest token and that of the step.",
            staleness_max="Largest of them.",
            over_max_staleness="With `schedule.max_staleness`: share of trajectories with a larger staleness.",
            spans_mean="Mean number of policy versions that wrote a trajectory, one after the other.",
            tokens="Tokens that the policy wrote in the batch, also of trajectories that teach nothing.",
            turns_mean="Of episodes: mean turns.",
            turns_max="Of episodes: most turns.",
            branches_mean="Of episodes: mean turns that no other turn follows.",
            context_tokens_mean="Of episodes: mean tokens that the environment wrote.",
            environment_s_mean="Of episodes: mean seconds that the environment took.",
            filtered_groups="With `schedule.filter`: groups that it dropped since the batch before.",
            filtered_share="With `schedule.filter`: their share of all groups since then.",
            **{
                "reward/*": "Mean of a further number of the verdicts, over trajectories that have it.",
                "models/*": "Use of a model of `[models]` since the step before: requests, cached, repeated, failed, "
                "seconds, tokens.",
            },
        ),
        *_about(
            "pace",
            step_s="Seconds from the end of the step before to that of this one, without `apart_s`.",
            apart_s="Seconds of it that tell nothing of the pace: a pause by an operator, or loading.",
            wait_s="Seconds in which the trainer waited for the batch.",
            train_s="Seconds in which the trainer trained it.",
            stage_s="Seconds in which it waited for an earlier version to be live, and copied the new one.",
            wait_rollout_s="Seconds in which rollouts had nothing to sample, mean over them.",
            publish_s="Seconds of the last publish that is complete.",
            publish_bytes="Bytes of it.",
            pause_s="Seconds in which the slowest rollout did not decode because of new weights.",
            receive_s="Seconds in which the slowest rollout received them.",
            tokens_per_s=f"`tokens` a second {LAST}.",
            step_recent_s=f"Mean of `step_s` {LAST}.",
            wait_trainer=f"Part of 1 of the time {LAST} in which the trainer waited.",
            wait_rollout=f"Part of 1 of the time {LAST} in which rollouts waited.",
        ),
        *_about(
            "update",
            loss="Loss of the policy, a sum by the weights of the tokens; it need not fall.",
            grad_norm="Norm of the gradient before it is clipped; 0 of an update that keeps no token.",
            lr="Learning rate.",
            skipped="Updates that left the weights as they were: no token is kept, or loss or gradient is not finite.",
            skipped_empty="Those of them that keep no token.",
            num_tokens="Tokens that the policy wrote in the step's trajectories.",
            num_trajectories="Trajectories of the step; with seats, one for each seat that spoke.",
            trained_tokens="Tokens that went through the model, added up over updates: those of trajectories with an "
            "advantage, unless more have a gradient.",
            kept_tokens="Those of them that are in the loss: not rejected, not masked.",
            micro_batches="Micro-batches, added up over updates and ranks.",
            packed_tokens="Tokens of their rows, prompts included.",
            reward_mean="Mean reward, as `num_trajectories` counts.",
            reward_std="Its standard deviation over the step.",
            advantage_mean="Mean over trajectories of their mean advantage.",
            advantage_std="Standard deviation of that.",
            zero_advantage_fraction="Share of trajectories whose advantages are all 0: they teach nothing.",
            clip_fraction="Share of kept tokens that the loss clips.",
            dual_clip_fraction="Share of kept tokens that the third bound of `clipped` clips.",
            selected_fraction="Share of kept tokens that `clip_cov` or `kl_cov` selects.",
            ratio_cap_fraction="Share of kept tokens whose ratio `ratio_cap` bounds.",
            divergent_masked_fraction="Share of trained tokens that `correction.mask_divergent` leaves out.",
            **{
                "untrained/turn_tokens": "Tokens of turns with `is_trained` false.",
                "untrained/old_tokens": "Tokens that `schedule.max_staleness` leaves out.",
                "untrained/old_quarter_*": "Those of each quarter of their trajectory.",
                "experts/max_load": "Tokens of a layer's busiest expert relative to an even load, mean over layers.",
                "experts/unused_fraction": "Share of experts that no trained token of an update chose.",
            },
        ),
        *_about(
            "policies",
            kl="Divergence of the policy in training from the one that sampled, in every mode: mean over trained "
            "tokens by k3 (`ratio - 1 - log(ratio)`, at most 10): nats, never negative.",
            entropy="Mean entropy of the policy in training at trained tokens, nats: of every eighth of them, or of "
            "each with `entropy_coef`.",
            log_ratio_abs_mean="Mean absolute difference of log-probs of these two policies over trained tokens, nats.",
            log_ratio_abs_max="Largest of them.",
            logprob_gap_mean="The same over tokens that the weights in training wrote: engine and trainer differ.",
            logprob_gap_max="Largest of them.",
            logprob_gap_tokens="Number of these tokens.",
            ess="Effective sample size of the ratios of trained tokens, as a share of them; before any correction.",
            ess_sequence="The same of the ratios of whole trajectories.",
            kl_ref="Mean KL to the reference over trained tokens, by `algorithm.kl`: that in the loss, nats.",
            kl_in_reward="Mean over trajectories of their mean KL to the reference, as in the reward, nats.",
            kl_coef="Weight of the KL in the reward.",
            **{
                "rollout_corr/*": "Statistics of the correction under verl's names; in decoupled mode over all tokens "
                "of the step, in bypass mode over trained tokens."
            },
        ),
        *_about(
            "critic",
            critic_loss="Loss of the values.",
            critic_clip_fraction="Share of kept tokens whose value is clipped.",
            critic_explained_variance="Variance of the returns that the values before the step explain; 1 is all.",
            critic_grad_norm="Norm of its gradient before it is clipped.",
            critic_skipped="Updates that left it as it was.",
        ),
        *_about(
            "devices",
            turn_s="Of devices that trainer and rollouts share: seconds of the trainer's last turn.",
            turn_wait_s="Seconds from its request to the grant.",
            turn_rollout_s="Seconds from the end of the turn before to the grant.",
            turn_moved_s="Seconds of the turn in which memory was moved.",
            turn_bytes="Bytes moved to the host at its end.",
        ),
    )
}
"""Entry of each key. Of several updates counts are added up, maxima are the highest, all else is the updates' mean."""


def key_of(name: str) -> StepKey | None:
    """The entry of a key of a line; None for unknown keys, such as a metric of a user's own loss."""
    found = (key for key in STEP_KEYS.values() if fnmatchcase(name, key.name))
    return STEP_KEYS.get(name) or next(found, None)
