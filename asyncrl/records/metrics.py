"""
Every metric that a process exposes: name, type, labels and meaning. The documentation's table is made from this one.

    actor.metrics() ─▶ `Sample`s, by name ─▶ exposition ─▶ text for Prometheus

Names follow Prometheus' rules: base units (seconds, bytes), ``_total`` at the end of a counter. Every sample also has
the labels ``role`` and ``node`` of its process. All label values come from fixed vocabularies.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from asyncrl.messages.session import ModelUse
from asyncrl.messages.words import REWARD_ACTIVITIES, ROLLOUT_ACTIVITIES, TRAINER_ACTIVITIES, Role
from asyncrl.records.measures import RECENTLY
from asyncrl.records.states import CONNECTED_STATES, GROUP_STATES

Kind = Literal["gauge", "counter"]
Owner = Literal["process", "broker", "rollout", "reward", "model", "trainer", "spool"]
"""
Role that has the metric; ``process`` is every process, ``model`` the nodes whose code asks models of ``[models]``. The
broker has those of the spool in its process too.
"""

STAGES = ("rollout", "environment", "reward", "payload", "trainer", "message", "other")
"""Places of a failure: those of `asyncrl.messages.words.Stage`, the trainer's refusals, and refused messages."""
NODE_ROLES: tuple[Role, ...] = ("rollout", "reward", "trainer", "machine", "spool", "supervisor")


class Metric(Struct, frozen=True):
    name: str
    kind: Kind
    owner: Owner
    meaning: str
    labels: Mapping[str, tuple[str, ...]] = {}
    """
    Values of each label beside ``role`` and ``node``; no values for a label of build information, and for names of the
    run file.
    """


class Sample(NamedTuple):
    """Value of one metric now. ``labels`` has all labels of the metric, without ``role`` and ``node``."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


def _of(owner: Owner, *metrics: tuple[str, str] | tuple[str, str, dict[str, tuple[str, ...]]]) -> list[Metric]:
    """Metrics of one owner, which begins their names; those that end with ``_total`` are counters."""
    made = []
    for name, meaning, *labels in metrics:
        kind: Kind = "counter" if name.endswith("_total") else "gauge"
        prefix = "asyncrl_" if owner == "process" else f"asyncrl_{owner}_"
        made.append(Metric(prefix + name, kind, owner, meaning, labels[0] if labels else {}))
    return made


def _standard(name: str, meaning: str) -> Metric:
    """A metric of the operating system's process, under the name that all Prometheus clients use."""
    return Metric(name, "counter" if name.endswith("_total") else "gauge", "process", meaning)


ASKED: dict[str, tuple[str, ...]] = {"model": ()}
"""Label of the metrics of a model."""

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_of(
            "process",
            ("build_info", "Always 1; the labels tell the versions.", {"version": (), "python": ()}),
            ("ready", "1 while the process serves the run, 0 while it starts, waits for the broker, or stops."),
            ("event_loop_lag_seconds", "Longest delay of the event loop in the last 15 s, without the start."),
        ),
        _standard("process_resident_memory_bytes", "Memory in RAM, without that of child processes."),
        _standard("process_virtual_memory_bytes", "Virtual memory."),
        _standard("process_cpu_seconds_total", "CPU time, of the user and the system."),
        _standard("process_open_fds", "Open file descriptors."),
        _standard("process_max_fds", "File descriptors that may be open."),
        _standard("process_start_time_seconds", "Start, in seconds since 1970."),
        *_of(
            "broker",
            ("steps_trained", "Steps that the trainer has reported, over all starts of the broker."),
            ("steps_planned", "Steps of the whole run."),
            ("tokens_trained", "Completion tokens of these steps."),
            ("last_step_timestamp_seconds", "Report of the last step, in seconds since 1970; at first the start."),
            ("policy_version", "Policy version that is live; -1 before the first."),
            (
                "groups",
                f"Open training groups by state: {'; '.join(map(', '.join, GROUP_STATES.items()))}.",
                {"state": tuple(GROUP_STATES)},
            ),
            ("groups_admitted_total", "Groups admitted to the window."),
            ("window_open", "Groups in the window: admitted, and their weights not yet live."),
            ("window_size", "Most groups that the window admits."),
            ("leases", "Leases that rollouts hold."),
            ("gradings", "Trajectories that wait for a reward, or are being graded."),
            (
                "failures_total",
                "Failed attempts and refused messages by the stage at which they failed.",
                {"stage": STAGES},
            ),
            (
                "nodes",
                f"Connected nodes by role and state: {', '.join(CONNECTED_STATES)}.",
                {"node_role": NODE_ROLES, "state": CONNECTED_STATES},
            ),
            ("ledger_records_total", "Records of the ledger on disk."),
            ("ledger_commits_total", "Transactions of the ledger; each is one sync of the disk."),
            ("ledger_commit_seconds_total", "Time of these transactions."),
            ("step_reward", "Mean reward of the last step's trajectories."),
            ("step_accuracy", "Share of correct ones, or the mean reward if the verifier tells no correctness."),
            ("step_tokens", "Completion tokens of the last step."),
            ("step_length_tokens", "Mean completion tokens of its trajectories."),
            ("step_truncated_ratio", "Share of its trajectories that ended at their length limit."),
            ("step_staleness_mean", "Mean staleness of its trajectories, in policy versions."),
            ("step_staleness_max", "Highest staleness of its trajectories, in policy versions."),
            ("recent_tokens_per_second", f"Trained tokens per second of the {RECENTLY}."),
            ("recent_step_seconds", f"Mean seconds of a step, {RECENTLY}."),
            ("recent_trainer_waiting_ratio", f"Share of the {RECENTLY} in which the trainer waited for a batch."),
            ("recent_rollouts_waiting_ratio", f"Share of the {RECENTLY} in which rollouts waited."),
            ("evaluation_accuracy", "Held-out accuracy of the last evaluation."),
        ),
        *_of(
            "rollout",
            ("policy_version", "Version that the engine samples with; -1 before the first weights."),
            ("slots", "Completions that the engine decodes together."),
            ("requests", "Requests in the engine."),
            ("trajectories_in_hand", "Trajectories that are sampled, or wait to be on the spool's disk."),
            ("trajectories_returned_total", "Trajectories that were stored, failed or taken back."),
            ("tokens_total", "Completion tokens sampled."),
            ("seconds_total", "Time by activity.", {"activity": (*ROLLOUT_ACTIVITIES, "idle")}),
            ("swaps_total", "Changes to new weights."),
            ("pause_seconds_total", "Time that sampling was paused for them."),
            ("receive_seconds_total", "Time to receive them, most of it beside sampling."),
            ("failures_total", "Failed trajectories by stage.", {"stage": ("rollout", "environment")}),
            ("containers", "Containers that episodes have, and that are kept warm.", {"state": ("leased", "warm")}),
            ("container_oldest_seconds", "Time since the oldest was leased."),
            ("container_seconds_total", "Time for which episodes have had containers, added up."),
            ("containers_started_total", "Containers started."),
            ("containers_failed_total", "Starts of containers that failed."),
        ),
        *_of(
            "reward",
            ("workers", "Worker processes."),
            ("workers_replaced_total", "Workers that hung or died."),
            ("trajectories_in_hand", "Trajectories that are being fetched or judged."),
            ("graded_total", "Trajectories answered with a reward or a failure."),
            ("failures_total", "Of these, failures by stage.", {"stage": ("reward", "payload")}),
            ("seconds_total", "Time by activity.", {"activity": (*REWARD_ACTIVITIES, "idle")}),
        ),
        *_of(
            "model",
            ("requests_total", "Requests of environments, tools, programs and rewards.", ASKED),
            ("cached_total", "Of these, those that an earlier answer, or that of an equal one, has answered.", ASKED),
            ("repeated_total", "Attempts that were not the first of their request.", ASKED),
            ("failures_total", "Requests without an answer that can be used.", ASKED),
            ("seconds_total", "Time of the requests that were sent, with the wait for their turn.", ASKED),
            ("tokens_total", "Tokens of prompts and answers, as the server counts them.", ASKED),
        ),
        *_of(
            "trainer",
            ("steps_total", "Optimizer steps since the start of the process."),
            ("tokens_total", "Tokens of these steps."),
            ("policy_version", "Newest version that is live at the rollouts."),
            ("loss", "Loss of the last step."),
            ("grad_norm", "Norm of its gradient before clipping."),
            ("learning_rate", "Its learning rate."),
            ("seconds_total", "Time by activity.", {"activity": (*TRAINER_ACTIVITIES, "idle")}),
            ("publishes_total", "Transfers of weights that ended well."),
            ("publish_bytes_total", "Bytes of the weights that they sent, once for all receivers."),
            ("publish_seconds_total", "Time of the transfers, beside training."),
        ),
        *_of(
            "spool",
            ("payloads", "Payloads that can be fetched."),
            ("segments", "Segment files."),
            ("written_bytes_total", "Bytes of payloads written."),
            ("syncs_total", "Syncs of the disk; each makes many payloads durable."),
            ("sync_seconds_total", "Time of writing and syncing."),
            ("disk_free_bytes", "Free space of the disk, for this user."),
            ("disk_size_bytes", "Size of the disk."),
        ),
    )
}
"""All metrics by name."""


def model_samples(uses: Mapping[str, ModelUse]) -> Iterator[Sample]:
    """Samples of the models that a node's code has asked, by their names."""
    for name, use in uses.items():
        labels = {"model": name}
        yield Sample("asyncrl_model_requests_total", use.requests, labels)
        yield Sample("asyncrl_model_cached_total", use.cached, labels)
        yield Sample("asyncrl_model_repeated_total", use.repeated, labels)
        yield Sample("asyncrl_model_failures_total", use.failed, labels)
        yield Sample("asyncrl_model_seconds_total", use.seconds, labels)
        yield Sample("asyncrl_model_tokens_total", use.tokens, labels)
