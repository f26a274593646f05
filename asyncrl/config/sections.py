"""
Every knob, once.

Where verl has a well-known name for a knob, the docstring gives it in brackets. What a single field cannot say, `check`
does. How a file becomes a `Config` is in `asyncrl.config.run_file`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asyncrl.messages import Sampling, Truncation

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Ratio = Annotated[int, Meta(ge=1, le=10_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of config: immutable, keyword-only, and a misspelt key is an error."""


class Run(Section, frozen=True, kw_only=True):
    """What the run is called, and how long it is."""

    name: str = ""
    """Folder below ``dir``; empty takes the config file's name, with a number behind it if that is taken."""
    dir: str = "runs"
    steps: Count = 60
    """Optimizer steps."""
    seed: Seed = 0
    """Feeds the data order, the sampling seeds and the trainer's random state."""


class Scratch(Section, frozen=True, kw_only=True):
    """A model made on the spot when ``model.path`` does not exist yet, and kept there."""

    recipe: Literal["", "step_sums", "random"] = ""
    """
    ``step_sums``: a small Qwen3 taught arithmetic chains by a short supervised warm-up, with its data.
    ``random``: random weights, and a byte-level BPE trained on ``data.train``. Empty: ``model.path`` must exist.
    """
    seed: Seed = 0
    layers: Count = 3
    hidden_size: Count = 64
    intermediate_size: Count = 192
    heads: Count = 4
    kv_heads: Count = 2
    head_dim: Count = 16
    vocab_size: Count = 2048
    """Of the byte-level BPE (``random``); ``step_sums`` has its own word list."""


class Model(Section, frozen=True, kw_only=True):
    """The policy."""

    path: str
    """A Hugging Face model directory: config, safetensors, tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    scratch: Scratch = Scratch()


class Data(Section, frozen=True, kw_only=True):
    """Prompts, as parquet or JSONL. The order is a function of the seed and the epoch alone."""

    train: str | list[str]
    """A file with the columns below, or several: one dataset then, unless ``ratios`` keep them apart [train_files]."""
    ratios: list[Ratio] = []
    """
    How often it is the turn of each file of ``train``, such as ``[3, 1]``. Each has epochs of its own then, and a
    larger share than its rows would give it comes from more of them.
    """
    held_out: str | list[str] = ""
    """Prompts never trained on, file after file; empty evaluates nothing [val_files]."""
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    data_source_column: str = "data_source"
    shuffle: bool = True
    max_rows: Natural = 0
    """
    Train on so many rows only, drawn by the seed, or the first without ``shuffle``; 0 takes all [train_max_samples].
    """
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    """
    A row that is no prompt: nothing starts, or it is left out, counted and said. `asyncrl data check` lists them all.
    """
    chat_template_kwargs: dict[str, str | int | float | bool] = {}
    """Handed to the model's chat template, such as ``enable_thinking = false`` [apply_chat_template_kwargs]."""
    max_prompt_tokens: Count = 512
    """Longer prompts are dealt with by the next two [max_prompt_length]."""
    truncation: Truncation = "error"
    """
    What is cut off a longer prompt. ``error``: nothing, it is a dead letter, and another prompt takes its place; if
    there is nothing else in a row, the run ends. ``right`` also cuts the words that ask the policy to begin.
    """
    filter_overlong_prompts: bool = False
    """With ``truncation = "error"``: it is expected, and dropped with the reason ``overlong_prompt``."""

    @property
    def train_files(self) -> list[str]:
        """``train``, as a list."""
        return _files(self.train)

    @property
    def held_out_files(self) -> list[str]:
        """``held_out``, as a list."""
        return _files(self.held_out)


class Schedule(Section, frozen=True, kw_only=True):
    """How far rollouts may run ahead of the trainer. asyncrl/broker/groups/window.py has the proof."""

    groups_per_step: Count = 16
    """P, prompt groups one optimizer step consumes [ppo_mini_batch_size x require_batches]."""
    group_size: Count = 8
    """n, trajectories of one prompt; advantages are centred in it [rollout.n]."""
    steps_per_publish: Count = 1
    """T, optimizer steps between two published versions [trigger_parameter_sync_step]."""
    staleness: NonNegative = 1.0
    """S: at most floor((1 + S) P T) groups are open. 0 is synchronous, 1 one step off [staleness_threshold]."""
    order: Literal["fifo", "completion"] = "fifo"
    """
    Which complete groups a step takes: the oldest admitted, or the first finished. The latter, with ``staleness``, is
    over-sampling: more prompts are sampled than a step consumes, and it consumes whichever are done first.
    """
    max_staleness: Natural | None = None
    """L: no group is trained on more than L versions after the one it was admitted at. Unset: any number."""
    on_straggler: Literal["wait", "reissue", "train"] = "wait"
    """
    Groups that ``max_staleness`` concerns. ``wait``: a step takes them in time. ``reissue``: they are
    sampled anew. ``train``: trained on all the same, and counted (``over_max_staleness``).
    """
    filter: Literal["none", "zero_variance"] = "none"
    """
    ``zero_variance``: a group whose values are all equal is dropped, and another admitted [filter_groups.enable].
    """
    filter_metric: str = ""
    """Which values: a metric of the verdicts, such as ``correct``; empty for the reward [filter_groups.metric]."""
    filter_patience: Natural = 0
    """
    Groups filtered in a row that end the run; 0 takes 16 windows, at least 256 [filter_groups.max_num_gen_batches].
    """
    partial_rollout: bool = True
    """Swap weights between two decode steps of a running generation; false waits until what is in hand is done."""
    max_attempts: Count = 3
    """A trajectory that failed this often goes to the dead letters, and its group is dropped and counted."""
    lease_s: Positive = 120.0
    """A lease not renewed by its node's beats for this long is given to somebody else."""

    @property
    def window(self) -> int:
        """Groups admitted and not yet retired: ``floor((1 + S) P T)``."""
        return int((1 + self.staleness) * self.groups_per_step * self.steps_per_publish + 1e-9)


class SamplingConfig(Section, frozen=True, kw_only=True):
    """How trajectories are sampled. The recorded log-probs are those of this distribution."""

    max_tokens: Count = 128
    """Completion tokens [data.max_response_length]."""
    temperature: NonNegative = 1.0
    top_p: Fraction = 1.0
    top_k: Natural = 0
    """0 keeps the whole vocabulary."""
    stop: list[str] = []

    def sampling(self) -> Sampling:
        """The same, as it travels in a lease."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
        )


class Vllm(Section, frozen=True, kw_only=True):
    """What ``rollout.engine = "vllm"`` needs to know beyond what every engine does."""

    tensor_parallel_size: Count = 1
    """Devices that share one engine's model."""
    gpu_memory_utilization: Fraction = 0.9
    """Share of a device's memory for weights, activations and KV cache."""
    kv_cache_bytes: Natural = 0
    """KV cache of each device; 0 takes what ``gpu_memory_utilization`` leaves [kv_cache_memory_bytes]."""
    enforce_eager: bool = False
    """Compile nothing and capture no graphs: starts sooner, decodes slower."""
    max_model_len: Natural = 0
    """Prompt and completion tokens of one request; 0 takes the longest that this run can have."""
    enable_chunked_prefill: bool | None = None
    """Long prompts are read in parts, between decode steps of others. Unset: except on a CPU, where it is refused."""
    engine_args: dict[str, Any] = {}
    """Further arguments of vLLM's engine, by its own names; those that asyncrl sets by itself are refused."""


class Rollout(Section, frozen=True, kw_only=True):
    """The processes that sample."""

    replicas: Count = 2
    """How many ``asyncrl run`` starts."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """``transformers`` comes with asyncrl and runs anywhere; ``vllm`` has to be installed, and is fast on devices."""
    vllm: Vllm = Vllm()
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """Where vLLM decodes. ``auto`` takes what there is, in the order cuda, npu, cpu. transformers uses the CPU."""
    slots: Count = 64
    """Completions decoded together by one engine [max_num_seqs]."""
    kv: Literal["keep", "recompute"] = "recompute"
    """After new weights: compute the KV cache of running completions again, or go on with the old one."""
    threads: Count = 1
    """Torch threads of one rollout; with vLLM those of its processes, on a CPU."""
    progress_every_s: NonNegative = 0.0
    """What is written of running completions is put on disk this often: a killed node loses no more. 0 never."""
    drain_s: NonNegative = 30.0
    """After SIGTERM: seconds to put what is written on disk, for other nodes to go on with."""


class RewardPart(Section, frozen=True, kw_only=True):
    """One of several rewards that are added up."""

    name: str
    """Its score is a metric of this name; ``algorithm.reward_weights`` and ``schedule.filter_metric`` may read it."""
    function: str
    """As ``reward.function``."""
    options: dict[str, str | int | float | bool] = {}
    """As ``reward.options``."""
    weight: float = 1.0
    """What its score is multiplied with; 0 only measures."""
    data_sources: list[str] = []
    """Rows it is for, such as ``openai/gsm8k`` or ``aime*``; none is every row."""
    correct: bool = False
    """It decides whether a completion counts as correct. Without one that does, the first for the row decides."""


class Reward(Section, frozen=True, kw_only=True):
    """How completions are judged."""

    function: str = "gsm8k"
    """
    ``gsm8k``, ``math``, ``math_dapo``, ``geo3k``, ``code``, ``exact``, ``numeric``, ``format``, ``overlong``,
    ``remote``, ``reward_model`` (asyncrl/reward/verifiers); ``auto`` for what the row's data source asks for; or
    ``file.py:name``: a function of one sample, sync or async, that returns a float or a dict with ``score``
    [reward.custom_reward_function].
    """
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function, checked against its signature before anything starts."""
    parts: list[RewardPart] = []
    """Several rewards in place of ``function``; the score is the sum of theirs, weighted."""
    workers: Count = 1
    """Processes that run the function, each killable."""
    timeout_s: Positive = 10.0
    """A verdict that takes longer is a failure, and its worker is killed."""


class Correction(Section, frozen=True, kw_only=True):
    """
    What is done about sampler and trainer not being the same policy [algorithm.rollout_correction].

    The formulas are in asyncrl/algo/correction, the presets in asyncrl/config/presets.py.
    """

    preset: str = ""
    """All of the below by one name, such as ``decoupled_geo_rs_seq_tis``; nothing else may be set with it."""
    mode: Literal["bypass", "decoupled"] = "bypass"
    """
    ``bypass``: ratios are against the policy that sampled. ``decoupled``: against the one the step begins with, whose
    log-probs are computed for that; the weights and rejections below then stand between it and the sampler.
    """
    importance: Literal["none", "token", "sequence"] = "none"
    """Weigh each token by the ratio of trainer to sampler, its own or its sequence's [rollout_is]."""
    importance_threshold: str | Positive = ""
    """``2.0``, or nothing, cuts weights to it; ``0.5_5.0`` drops tokens outside the band [rollout_is_threshold]."""
    importance_normalize: bool = False
    """Divide the weights by their mean over the step [rollout_is_batch_normalize]."""
    rejection: str = ""
    """Tokens or sequences left out, ``token_k1`` or ``seq_mean_k1`` and the like; several by commas [rollout_rs]."""
    rejection_threshold: str | Positive = ""
    """One for each of them, or one for all: ``0.999_1.001`` for k1, an upper bound otherwise [rollout_rs_threshold]."""


class Algorithm(Section, frozen=True, kw_only=True):
    """
    From rewards to a loss. The formulas are in asyncrl/algo.

    A setting left unset takes the default of the estimator or loss that reads it; one that nothing reads is refused.
    """

    advantage: str = "grpo"
    """``grpo``, ``dr_grpo``, ``rloo``, ... (asyncrl/algo/advantages), or ``file.py:name`` [adv_estimator]."""
    gamma: Fraction | None = None
    """Discount of rewards that come later."""
    lam: Annotated[float, Meta(ge=0, le=1)] | None = None
    """``gae``: how far it looks ahead instead of trusting the critic."""
    reward_weights: dict[str, float] = {}
    """``gdpo``: metrics of the verdict to compare one by one, and their weights [gdpo_reward_keys]."""
    loss: str = "clipped"
    """``clipped``, ``gspo``, ``cispo``, ... (asyncrl/algo/losses), or ``file.py:name`` [policy_loss.loss_mode]."""
    clip_low: Positive | None = None
    """The ratio stops mattering below ``1 - clip_low`` [clip_ratio_low]."""
    clip_high: Positive | None = None
    """... and above ``1 + clip_high`` [clip_ratio_high]."""
    dual_clip: NonNegative | None = None
    """Bound of the loss where the advantage is negative, in advantages; 0 switches it off [clip_ratio_c]."""
    ratio_cap: Positive | None = None
    """``dppo_tv``, ``dppo_kl``: the ratio counts no more than this [clip_ratio_c]."""
    tau_pos: Positive | None = None
    """``sapo``: how sharply the gate falls where the advantage is positive."""
    tau_neg: Positive | None = None
    """... and where it is negative."""
    cov_ratio: Fraction | None = None
    """``clip_cov``, ``kl_cov``: share of tokens that are picked out [clip_cov_ratio, kl_cov_ratio]."""
    cov_low: float | None = None
    """``clip_cov``: covariances below are left alone [clip_cov_lb]."""
    cov_high: float | None = None
    """... and those above [clip_cov_ub]."""
    cov_kl_coef: NonNegative | None = None
    """``kl_cov``: weight of the penalty on tokens picked out [ppo_kl_coef]."""
    dro_beta: Positive | None = None
    """``dro``: weight of the squared log-ratio. Must be given."""
    aggregation: Literal[
        "", "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"
    ] = ""
    """How token losses become one number; empty takes that of the loss, mostly ``token-mean`` [loss_agg_mode]."""
    aggregation_norm: NonNegative = 0.0
    """Divisor of ``seq-mean-token-sum-norm``; 0 takes ``sampling.max_tokens`` [loss_scale_factor]."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the starting policy; 0 keeps no reference model [kl_loss_coef]."""
    kl: str = "k3"
    """``k1``, ``abs``, ``k2``, ``k3``; with a ``+`` behind it, its value and the gradient of k2 [kl_loss_type]."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL goes [use_kl_loss, use_kl_in_reward]."""
    kl_target: NonNegative = 0.0
    """With ``kl_in = "reward"``: ``kl_coef`` is adapted until the KL is this; 0 keeps it fixed [kl_ctrl.target_kl]."""
    kl_horizon: Count = 10_000
    """... over about so many trajectories [kl_ctrl.horizon]."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus [entropy_coeff]."""
    correction: Correction = Correction()


class Lora(Section, frozen=True, kw_only=True):
    """Adapters that are trained in the place of the model, and published merged into it."""

    rank: Natural = 0
    """Width of an adapter; 0 trains the model itself [lora_rank]."""
    alpha: NonNegative = 0.0
    """An adapter counts ``alpha / rank`` times; 0 takes twice the rank [lora_alpha]."""
    targets: list[str] = []
    """Linear layers that get one, such as ``["q_proj", "v_proj"]``; empty is all but the head [target_modules]."""


class Trainer(Section, frozen=True, kw_only=True):
    """The optimizer."""

    lr: Positive = 1e-6
    warmup_steps: Natural = 0
    lr_schedule: Literal["constant", "cosine"] = "constant"
    min_lr_ratio: NonNegative = 0.0
    """Where the cosine ends, as a share of ``lr``."""
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.01
    grad_clip: NonNegative = 1.0
    """Norm the gradient is clipped to; 0 never clips."""
    mini_batches: Count = 1
    """Updates of one pass over a batch: so many parts of whole groups [train_batch_size / ppo_mini_batch_size]."""
    epochs: Count = 1
    """Passes over a batch [ppo_epochs]."""
    ranks: Count = 1
    """Processes that share the model, its gradients and its optimizer (FSDP2)."""
    device: Literal["cpu", "cuda", "npu"] = "cpu"
    """Where it computes; a device for each rank, the first there are. Rollouts get the others [trainer.device]."""
    max_tokens_per_micro_batch: Count = 16384
    """Tokens of a forward and backward pass; a prompt that many follow counts once [ppo_max_token_len_per_gpu]."""
    gradient_checkpointing: bool = False
    """Keep one activation a layer, and compute the others again."""
    lora: Lora = Lora()
    logprob_gap_warn: NonNegative = 0.0
    """
    Warn once if sampler and trainer, with the same weights, differ by more nats on the mean token of a step; 0 takes
    0.0001 for ``model.dtype = "float32"`` and 0.1 for ``"bfloat16"``.
    """
    threads: Count = 1
    """Torch threads."""


class Critic(Section, frozen=True, kw_only=True):
    """The value model of ``algorithm.advantage = "gae"``. What is not here is as in ``[trainer]``."""

    path: str = ""
    """A Hugging Face model directory it starts from; empty takes ``model.path``."""
    lr: Positive = 1e-5
    weight_decay: NonNegative = 0.01
    grad_clip: NonNegative = 1.0
    """Norm the gradient is clipped to; 0 never clips."""
    value_clip: Positive = 0.5
    """How far a prediction may move from the one before the step [cliprange_value]."""


class Weights(Section, frozen=True, kw_only=True):
    """How weights move from trainer to rollouts."""

    backend: Literal["auto", "gloo", "nccl", "hccl"] = "auto"
    """
    Collective library, and with it where both ends stage weights: ``gloo`` on the host, ``nccl`` on a CUDA device,
    ``hccl`` on an Ascend NPU. ``auto`` is where the trainer computes, the CPU. nccl wants a device for each end: a
    trainer and a rollout that share one GPU use gloo.
    """
    interface: str = "127.0.0.1"
    """Address whose network interface the collective uses."""
    bucket_bytes: Count = 64 << 20
    """Bytes of one collective [update_weights_bucket_megabytes]."""
    deadline_s: Positive = 30.0
    """One transfer, group formation included; who is late is named, and the others go on without it."""
    verify: bool = False
    """Compare checksums after every transfer. Those of deltas, and the first of a group, are compared in any case."""
    delta: bool = False
    """
    Send only what changed since the last version, losslessly, and compare checksums. It pays where the network is
    slower than about 0.5 GB/s: that is how fast one core finds the changes. The trainer keeps a third copy of the
    weights.
    """
    staging: Literal["whole", "bucket"] = "whole"
    """
    What a rollout stages. ``bucket`` needs ``bucket_bytes`` beside the engine's weights and no more, but decoding
    stands still for all of a transfer, and an engine whose transfer broke has to start again.
    """


class Evaluation(Section, frozen=True, kw_only=True):
    """Held-out prompts, answered by one rollout at one pinned version while the others go on."""

    every_versions: Natural = 10
    """0 evaluates only at the start and the end [trainer.test_freq]."""
    at_start: bool = True
    at_end: bool = True
    max_prompts: Count = 256
    """The first so many usable rows of each file of ``data.held_out``."""
    max_tokens: Natural = 0
    """0 takes ``sampling.max_tokens``."""
    samples: Count = 1
    """
    Completions of each prompt (k); from two on avg@k, pass@1 .. pass@k and maj@k are measured [val_kwargs.n].
    """
    temperature: NonNegative = 0.0
    """0 is greedy, and all completions of a prompt are then one."""
    top_p: Fraction = 1.0
    top_k: Natural = 0
    """0 keeps the whole vocabulary."""

    def sampling(self, training: SamplingConfig) -> Sampling:
        """As it travels in a lease. What ends a completion is training's."""
        return Sampling(
            max_tokens=self.max_tokens or training.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=training.stop,
        )


class Checkpoint(Section, frozen=True, kw_only=True):
    """Model, optimizer and frontier on disk; the manifest is written last."""

    every_steps: Natural = 0
    """0 keeps only the one at the end, and a trainer that dies begins anew [trainer.save_freq]."""
    keep: Count = 2
    """The newest so many."""
    keep_best: bool = False
    """Keep the one that did best on ``data.held_out`` too, however old; ``checkpoints/best.json`` names it."""
    best_metric: str = "accuracy"
    """With ``keep_best``: ``accuracy``, or another metric of evaluations of which more is better."""


class Trackers(Section, frozen=True, kw_only=True):
    """Where else a run is shown. Each tracker follows it from a process of its own, and cannot stop it."""

    use: list[str] = []
    """``tensorboard``, ``wandb``, ``mlflow``, or ``file.py:name``: a function that returns a tracker [logger]."""
    options: dict[str, dict[str, str | int | float | bool | list[str]]] = {}
    """Of each, by its name; such as ``wandb.mode = "offline"``."""
    timeout_s: Positive = 60.0
    """One call of a tracker that takes longer ends its process, which is started again."""


class Broker(Section, frozen=True, kw_only=True):
    """Addresses and heartbeats."""

    bind: str = "tcp://127.0.0.1:0"
    """Control socket; port 0 takes a free one."""
    spool_bind: str = "tcp://127.0.0.1:0"
    """Bulk socket of the spool inside the broker's process."""
    beat_s: Positive = 0.5
    """Nodes say they are alive this often, from the loop that does their work."""
    notice_s: Positive = 2.0
    """A node silent for this long is given nothing new until it is heard again; an event says so."""
    node_ttl_s: Positive = 10.0
    """A node silent for this long is lost, and its leases are given away."""
    segment_bytes: Count = 256 << 20
    """A spool segment is closed at this size."""
    samples: bool = True
    """Write every consumed trajectory to ``samples/``."""


class Supervisor(Section, frozen=True, kw_only=True):
    """``asyncrl run``: what happens to children that die."""

    max_restarts: Natural = 5
    """Of one process within ``window_s``; one more ends the run."""
    window_s: Positive = 300.0


class Config(Section, frozen=True, kw_only=True):
    """A run."""

    run: Run = Run()
    model: Model
    data: Data
    schedule: Schedule = Schedule()
    sampling: SamplingConfig = SamplingConfig()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    trainer: Trainer = Trainer()
    critic: Critic = Critic()
    weights: Weights = Weights()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    trackers: Trackers = Trackers()
    broker: Broker = Broker()
    supervisor: Supervisor = Supervisor()

    @property
    def greedy_per_group(self) -> int:
        """Trajectories of a prompt that are decoded greedily beside the others, and only compared with."""
        return int(self.algorithm.advantage == "remax")

    @property
    def longest_request(self) -> int:
        """Tokens of the longest prompt and the longest completion together."""
        return self.data.max_prompt_tokens + max(self.sampling.max_tokens, self.evaluation.max_tokens)


def _files(paths: str | list[str]) -> list[str]:
    return [path for path in ([paths] if isinstance(paths, str) else paths) if path]


def to_json(config: Config) -> bytes:
    """As it travels to nodes."""
    return msgspec.json.encode(config)


def from_json(raw: bytes) -> Config:
    """As nodes read it."""
    return msgspec.json.decode(raw, type=Config)


def leaves(raw: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested dict, under its full key."""
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
