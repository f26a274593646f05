"""
All settings of a run file, one Struct per section.

The docstring of a field is its reference documentation; verl's name for the field is in brackets at its end. Checks
across fields are in `asyncrl.config.check`; `asyncrl.config.run_file` reads a file into a `Config`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from asyncrl.config.addresses import host_of, is_loopback, tcp
from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.messages.trajectory import Sampling
from asyncrl.messages.words import Split, Truncation

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
_LIMIT = Meta(ge=-1)
Limit = Annotated[int, _LIMIT]
"""Number of which 0 means all, or never; a section converts verl's ``-1`` for the same to 0."""
Ratio = Annotated[int, Meta(ge=1, le=10_000)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
LIVE = Meta(extra={"live": True})
"""Marks a setting that `asyncrl set` changes while the run goes on; asyncrl/config/live.py."""
AUTO_START = 1.0
"""``schedule.staleness`` of a run that starts with ``auto``."""
ToolParser = Literal["auto", "response_template", "hermes", "qwen_xml", "glm", "llama_json", "deepseek", "none"]


@cache
def _limits(section: type[Struct]) -> tuple[str, ...]:
    """Names of the fields of type `Limit`."""
    return tuple(
        name for name, kind in get_type_hints(section, include_extras=True).items() if _LIMIT in get_args(kind)
    )


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of sections: immutable, keyword-only, and an unknown key is an error."""

    def __post_init__(self) -> None:
        for name in _limits(type(self)):
            force_setattr(self, name, max(getattr(self, name), 0))


class Run(Section, frozen=True, kw_only=True):
    """Name, length and seed of the run."""

    name: str = ""
    """Folder below ``dir``. Empty takes the name of the run file, with a number appended if that is taken."""
    dir: str = "runs"
    """Folder of all run directories."""
    steps: Count = 60
    """Optimizer steps to train, unless ``epochs`` decides."""
    epochs: Positive | None = None
    """
    Passes over the rows to train on, instead of ``steps``: the broker counts the rows, and takes as many whole steps of
    ``schedule.groups_per_step`` groups as fit into them [total_epochs].
    """
    seed: Seed = 0
    """Seed of the data order, of sampling and of the trainer's random state."""


class Model(Section, frozen=True, kw_only=True):
    """The policy."""

    path: str
    """
    Hugging Face model directory: config, safetensors, tokenizer. ``org/name`` or ``hf://org/name@revision`` is a model
    of the Hub, from this machine's cache or the network; the run's own configuration then has its folder and commit.
    """
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    overrides: dict[str, Any] = {}
    """
    Values in place of those in the config.json of ``path``, such as ``max_position_embeddings = 32768``; tables, such
    as ``rope_scaling``, are merged. Trainer and rollouts use them, and checkpoints have them [override_config].
    """


class Data(Section, frozen=True, kw_only=True):
    """Prompts, as parquet or JSONL files. Their order depends only on the seed and the epoch."""

    train: str | list[str]
    """
    File with the columns below, or several: one dataset, unless ``ratios`` is set. ``org/name:split`` or
    ``hf://datasets/org/name:split`` is a dataset of the Hugging Face Hub [train_files].
    """
    ratios: list[Ratio] = []
    """
    Prompts taken from each file of ``train`` in turn, such as ``[3, 1]``. Each file then has its own epochs, so a
    small file with a large ratio is repeated more often. Empty: the files are one dataset.
    """
    held_out: str | list[str] = ""
    """File or files of evaluation prompts, never trained on; empty switches evaluation off [val_files]."""
    prompt_column: str = "prompt"
    """Column of the prompt: a text or a list of chat messages [prompt_key]."""
    as_chat: bool = False
    """
    Make each prompt that is a text one message of the user, so that the model's chat template is applied to it. False:
    the model reads the bare text.
    """
    answer_column: str = "answer"
    """Column of the reference answer that the reward function gets."""
    image_column: str = "images"
    """
    Column of the prompt's pictures: a list of files, each as bytes, a path beside the dataset, or ``{bytes, path}``.
    The prompt has a mark ``<image>`` for each [image_key].
    """
    data_source_column: str = "data_source"
    """Column that names the row's dataset, such as ``openai/gsm8k``; it may choose the reward [reward_fn_key]."""
    shuffle: bool = True
    """Draw prompts in random order, a new one each epoch; false keeps the order of the files."""
    max_rows: Limit = 0
    """Rows to train on, drawn by the seed, or the first without ``shuffle``; 0 or -1: all [train_max_samples]."""
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    """
    Handling of rows that are not valid prompts. ``refuse``: the run does not start. ``skip``: they are left out,
    counted and reported. `asyncrl data check` lists all of them.
    """
    chat_template_kwargs: dict[str, str | int | float | bool] = {}
    """Arguments of the model's chat template, such as ``enable_thinking = false`` [apply_chat_template_kwargs]."""
    max_prompt_tokens: Count = 512
    """Longest prompt, in tokens; the next two settings handle longer ones [max_prompt_length]."""
    truncation: Truncation = "error"
    """
    Part of a longer prompt that is cut out: ``left`` its beginning, ``right`` its end (and with it the chat template's
    generation prompt), ``middle``. ``error`` drops the prompt as a dead letter, and another prompt replaces it; too
    many in a row end the run.
    """
    filter_overlong_prompts: bool = False
    """With ``truncation = "error"``: drop longer prompts with the reason ``overlong_prompt``, without a dead letter."""
    retire_at: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """
    Do not sample a prompt again in later epochs once this share of its group was correct; 0 samples all prompts in
    every epoch. The event ``prompts.retired`` counts them; a run whose prompts are all retired fails.
    """

    @property
    def train_files(self) -> list[str]:
        return _listed(self.train)

    @property
    def held_out_files(self) -> list[str]:
        return _listed(self.held_out)


class Schedule(Section, frozen=True, kw_only=True):
    """Limits on how far rollouts run ahead of the trainer. asyncrl/broker/groups/window.py has the proof."""

    groups_per_step: Count = 16
    """P, prompt groups that one optimizer step consumes [ppo_mini_batch_size x require_batches]."""
    group_size: Count = 8
    """n, trajectories per prompt; most advantages compare them with each other [rollout.n]."""
    steps_per_publish: Count = 1
    """T, optimizer steps between two published policy versions [trigger_parameter_sync_step]."""
    staleness: Annotated[NonNegative | Literal["auto"], LIVE] = 1.0
    """
    S: at most floor((1 + S) P T) groups are open; 0 is synchronous, 1 one publish ahead [staleness_threshold]. Set
    live, it bounds the groups admitted from then on. ``auto``: a run starts with 1, and the broker sets the least of
    0, .5, 1, 2 and 4 that is about as fast as the fastest, by a plan fitted to the run's own times.
    """
    order: Literal["fifo", "windowed", "completion"] = "fifo"
    """
    Complete groups that a step takes first: the oldest (``fifo``), the oldest but past slow ones (``windowed``), or the
    first to finish (``completion``). With ``staleness`` the latter is over-sampling: more prompts are sampled than a
    step consumes, and it takes those that finish first.
    """
    order_window: Count | None = None
    """
    R, with ``order = "windowed"``: a step takes complete groups of the R oldest slots of the line of admitted groups,
    so at most R - 1 younger groups pass a slow one. 1 is ``fifo``; the bound on staleness grows by R - 1 groups. Unset:
    as many as ``max_staleness`` allows with ``on_straggler = "wait"``, otherwise 1 + S times those that may be open at
    once, and at least twice: what is trained while the slowest of lengths spread 50x is sampled.
    """
    max_staleness: Natural | None = None
    """L: a group is trained on at most L versions after the one it was admitted at. Unset: no limit."""
    on_straggler: Literal["wait", "reissue", "train", "mask"] = "wait"
    """
    Handling of groups about to exceed ``max_staleness``. ``wait``: a step waits and takes them in time. ``reissue``:
    sample them again. ``train``: train on them all the same and count them (``over_max_staleness``). ``mask``: train on
    their newer tokens alone; the policy reads the older ones, and they are in no loss and in no mean.
    """
    filter: Literal["none", "zero_variance"] = "none"
    """``zero_variance``: drop a group of equal rewards and admit another one [filter_groups.enable]."""
    filter_metric: str = ""
    """Metric of the verdict that the filter compares, such as ``correct``; empty: the reward [filter_groups.metric]."""
    filter_patience: Natural = 0
    """Filtered groups in a row that end the run; 0: 16 windows, at least 256 [filter_groups.max_num_gen_batches]."""
    partial_rollout: bool | Literal["turn"] = True
    """
    Load new weights between two decode steps of running completions. False finishes those first, whole episodes with an
    ``[environment]``; ``"turn"`` finishes the running turn of each episode, whose next turn has the new weights.
    """
    max_attempts: Count = 3
    """Failures of one trajectory after which it becomes a dead letter, and its group is dropped and counted."""
    lease_s: Positive = 120.0
    """Seconds after which a lease that its node does not renew by heartbeats is given to another node."""

    @property
    def kept_max_staleness(self) -> int | None:
        """``max_staleness`` if no older group is trained on; None if there is no such bound."""
        return self.max_staleness if self.on_straggler in ("wait", "reissue") else None

    @property
    def staleness_bound(self) -> float:
        """S as a number; with ``auto`` the one that a run starts with."""
        return AUTO_START if self.staleness == "auto" else self.staleness

    @property
    def window(self) -> int:
        """Maximum number of groups admitted and not yet retired: ``floor((1 + S) P T)``."""
        return int((1 + self.staleness_bound) * self.groups_per_step * self.steps_per_publish + 1e-9)

    @property
    def reach(self) -> int | None:
        """Slots of the line that a step takes groups from, ``order_window`` if it is set; None without a limit."""
        match self.order:
            case "fifo":
                return 1
            case "completion":
                return None
        if self.order_window is not None:
            return self.order_window
        if self.max_staleness is None or self.on_straggler != "wait":
            return int(max(2.0, 1.0 + self.staleness_bound) * self.window + 1e-9)
        return max(1, self.reach_within(self.max_staleness))

    def reach_within(self, max_staleness: int) -> int:
        """Largest ``order_window`` whose bound is ``max_staleness``; below 1 if even ``fifo`` may exceed it."""
        return (max_staleness + 1) * self.groups_per_step * self.steps_per_publish - self.window + 1

    @property
    def most_versions_by_order(self) -> int | None:
        """Bound on staleness that ``order`` keeps by itself; None without. asyncrl/broker/ledger/staleness_bound.py."""
        if self.reach is None:
            return None
        return (self.window + self.reach - 2) // (self.groups_per_step * self.steps_per_publish)


class SamplingConfig(Section, frozen=True, kw_only=True):
    """Sampling of trajectories. The recorded log-probs are those of this distribution."""

    max_tokens: Annotated[Count, LIVE] = 128
    """
    Longest completion, in tokens [data.max_response_length]. Set live, at most to the value that the run was started
    with, it is for the groups admitted from then on.
    """
    temperature: NonNegative = 1.0
    """Divisor of the logits."""
    top_p: Fraction = 1.0
    """Probability mass of the likeliest tokens to sample from; 1 keeps the whole vocabulary."""
    top_k: Limit = 0
    """Number of likeliest tokens to sample from; 0 or -1 keeps the whole vocabulary."""
    replay_mask: bool = False
    """
    With ``top_p`` or ``top_k``: record which ids they left for each token, and have the trainer renormalise its
    log-probs over the same ids, so that ratios compare like with like. About 4 bytes for each id.
    """
    stop: list[str] = []
    """Texts that end a completion."""
    seeded: bool = True
    """
    Draw each trajectory with a seed of its own, so that one that is sampled again under the same weights gets the same
    tokens, on any node. False draws all of an engine from one generator, which vLLM does faster: on an NPU a seed costs
    one kernel per completion and step. Evaluations are always seeded.
    """

    def sampling(self) -> Sampling:
        """The settings as the message type that a lease carries."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            replay_mask=self.replay_mask,
        )


class Vllm(Section, frozen=True, kw_only=True):
    """Settings of ``rollout.engine = "vllm"``."""

    tensor_parallel_size: Count = 1
    """Devices that share one engine's model [tensor_model_parallel_size]."""
    gpu_memory_utilization: Fraction = 0.9
    """Fraction of a device's memory for weights, activations and KV cache."""
    kv_cache_bytes: Natural = 0
    """Bytes of KV cache on each device; 0 takes what ``gpu_memory_utilization`` leaves [kv_cache_memory_bytes]."""
    enforce_eager: bool = False
    """Neither compile nor capture graphs: starts sooner, decodes slower."""
    max_model_len: Natural = 0
    """Longest request, prompt and completion together, in tokens; 0 takes the longest that this run can have."""
    enable_chunked_prefill: bool | None = None
    """Read long prompts in parts, between decode steps of others. Unset: true, except on a CPU, which lacks it."""
    engine_args: dict[str, Any] = {}
    """Further engine arguments by vLLM's names; those that asyncrl sets itself are refused [engine_kwargs.vllm]."""


class Rollout(Section, frozen=True, kw_only=True):
    """Processes that sample trajectories."""

    replicas: Count = 2
    """Number of rollout processes that ``asyncrl run`` starts."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """``transformers`` comes with asyncrl and runs anywhere; ``vllm`` is installed separately and fast on devices."""
    vllm: Vllm = Vllm()
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """
    Device of each rollout. ``auto`` is the cpu for transformers, and for vLLM the first available of cuda, npu and cpu.
    On a machine with one device, rollouts share it with a trainer of the same ``trainer.device``.
    """
    colocated: bool = False
    """
    Trainer and rollouts take turns at the same devices, as in synchronous recipes [actor_rollout_ref.hybrid_engine]:
    rollouts sleep while the trainer trains, and the trainer's memory is on the host while they sample.
    """
    slots: Count = 64
    """Completions that one engine decodes together [max_num_seqs]."""
    kv: Literal["keep", "recompute"] = "recompute"
    """KV cache of running completions after new weights are loaded: recompute it, or keep the old one."""
    replay_routes: bool = False
    """
    With a mixture of experts: record which experts each token takes in each layer, and have the trainer send it to the
    same ones. A byte for each, two with more than 256 experts [enable_rollout_routing_replay].
    """
    threads: Count = 1
    """Torch threads of one rollout; with vLLM those of each of its processes, on a CPU."""
    progress_every_s: NonNegative = 0.0
    """Seconds between two saves of unfinished completions, the most that a killed node loses; 0 never saves."""
    episodes: Natural = 0
    """
    Episodes in hand at a time, with an ``[environment]``: more than ``slots``, because an episode whose environment
    thinks needs no slot. 0 takes twice ``slots``, or four for each core of ``environment.command``, each of which is a
    process.
    """
    drain_s: NonNegative = 30.0
    """Seconds after SIGTERM to save unfinished completions, which other nodes then continue."""

    @property
    def wanted_device(self) -> Literal["auto", "cpu", "cuda", "npu"]:
        """``device`` as the engine understands it: only vLLM takes what it finds."""
        return "cpu" if self.engine == "transformers" and self.device == "auto" else self.device


class Environment(Section, frozen=True, kw_only=True):
    """
    Episodes of several turns. Exactly one of ``function``, ``tools`` and ``command`` chooses what answers the policy;
    without any, a trajectory is one completion after its prompt.
    """

    function: str = ""
    """
    ``file.py:name`` or ``module:name``: a class with ``reset``, ``step`` and ``close``, one instance for each episode;
    a function ``make(task)`` that returns such an object, or an environment of skyrl-gym or textarena; or a function
    ``solve(task, client)`` that talks to the policy as to an OpenAI server.
    """
    tools: list[str] = []
    """
    Functions that the policy may call: ``calculator``, ``python`` (in a sandbox with walls), ``python_unconfined`` (the
    same where the kernel gives no walls), ``file.py:name``, or ``mcp:COMMAND ...`` for all tools of an MCP server.
    """
    command: list[str] = []
    """Agent program, run once for each episode with ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` in its environment."""
    gateway: str = "tcp://127.0.0.1:0"
    """
    Address on which a rollout listens for its agent programs; port 0 takes a free one. Other machines, and containers,
    reach it only if another host is given, which must be an address of this machine; the traffic is not encrypted.
    """
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of ``function``."""
    python: str = ""
    """Interpreter of the environment's processes, with packages of its own; empty: the one that runs asyncrl."""
    workers: Count = 2
    """Processes of a rollout that run environments, each of which can be killed. Episodes share them."""
    call_s: Positive = 60.0
    """Seconds for one call of an environment; a longer one is a failure, and its worker is killed."""
    episode_s: Positive = 3600.0
    """Seconds for one episode; a longer one ends there with the finish reason ``length``, and is graded."""
    max_turns: Count = 32
    """Most turns of the policy in one episode."""
    max_tokens: Count = 8192
    """
    Most tokens of one episode after its prompt, those of the environment included. One turn has at most
    ``sampling.max_tokens``.
    """
    tool_parser: ToolParser = "auto"
    """
    Form in which the policy writes calls of tools. ``auto`` takes the tokenizer's ``response_template`` if it has one,
    otherwise the form that its chat template shows.
    """
    history: Literal["as_sampled", "as_template"] = "as_sampled"
    """
    Earlier turns as the policy reads them: with the tokens that it sampled, or as the chat template renders them again,
    which for reasoning models drops earlier thoughts. The latter begins a new branch where they differ.
    """
    memory_bytes: Count = 8 << 30
    """Memory of one worker and all that it has started; above it they are killed, and its episodes fail."""
    processes: Count = 1024
    """Processes of one worker, with those that its environments start; above it they are killed."""
    file_bytes: Count = 1 << 30
    """Size of each file that an environment writes."""

    @property
    def is_set(self) -> bool:
        """True if trajectories are episodes."""
        return bool(self.function or self.tools or self.command)


class RewardPart(Section, frozen=True, kw_only=True):
    """One of several rewards that are added up."""

    name: str
    """Metric that holds this part's reward; ``algorithm.reward_weights`` and ``schedule.filter_metric`` may name it."""
    function: str
    """Built-in name or ``file.py:name``, like ``reward.function``."""
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function."""
    weight: float = 1.0
    """Factor of this part's reward in the sum; with 0 it is only a metric."""
    data_sources: list[str] = []
    """Data sources this part applies to, such as ``openai/gsm8k`` or ``aime*``; empty: all rows."""
    correct: bool = False
    """This part decides whether a completion is correct; if none has it set, the first part for the row decides."""


class Reward(Section, frozen=True, kw_only=True):
    """Rewards of completions."""

    function: str = "auto"
    """
    ``auto`` chooses by the row's data source, and refuses data sources that it does not know; ``gsm8k``, ``math``,
    ``math_dapo``, ``geo3k``, ``code``, ``exact``, ``numeric``, ``format``, ``length``, ``overlong``, ``reasoning_gym``,
    ``remote``, ``reward_model`` (asyncrl/reward/verifiers) are for all rows; ``episode`` takes the word of the
    ``[environment]``; ``file.py:name`` is a custom function of one `VerifierInput`, or with the arguments of verl's
    ``compute_score``, sync or async, that returns a float or a dict with ``score`` [reward.custom_reward_function].
    """
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function, checked against its signature at the start."""
    parts: list[RewardPart] = []
    """Several rewards instead of ``function``; the reward is their weighted sum."""
    workers: Count = 1
    """Processes that run the function, each of which can be killed."""
    timeout_s: Positive = 10.0
    """Seconds for one verdict; a longer one counts as a failure, and its worker is killed."""
    memory_bytes: Count = 8 << 30
    """Memory of one worker and all that it has started; above it they are killed, and the verdict fails."""
    processes: Count = 256
    """Processes of one worker, with those of the programs it runs; above it they are killed."""
    file_bytes: Count = 1 << 30
    """Size of each file that a worker writes."""


class Correction(Section, frozen=True, kw_only=True):
    """
    Off-policy correction between sampler and trainer [algorithm.rollout_correction].

    The formulas are in asyncrl/algo/correction, the presets in asyncrl/config/correction.py.
    """

    preset: str = ""
    """
    Name for all settings below, such as ``decoupled_geo_rs_seq_tis``; beside it only ``anchor`` and ``mask_divergent``
    may be set. ``bypass_ppo_clip`` is the default.
    """
    mode: Literal["bypass", "decoupled"] = "bypass"
    """
    Denominator of the ratio in the loss. ``bypass``: the policy that sampled. ``decoupled``: the policy the step begins
    with, whose log-probs are computed first; weights and rejections then compare that policy with the sampler.
    """
    anchor: Literal["step", "publish"] = "step"
    """
    With ``decoupled`` and ``schedule.steps_per_publish`` above 1: the policy that all log-probs before a step are of.
    ``step``: the one the step begins with. ``publish``: the one published last, kept on the host.
    """
    importance: Literal["none", "token", "sequence"] = "none"
    """Weight each token by the ratio of trainer to sampler, of the token or of its sequence [rollout_is]."""
    importance_threshold: str | Positive = ""
    """``2.0``, the default, clips weights; ``0.5_5.0`` drops tokens with weights outside [rollout_is_threshold]."""
    importance_normalize: bool = False
    """Divide the weights by their mean over the step [rollout_is_batch_normalize]."""
    rejection: str = ""
    """Criteria that drop tokens or sequences, such as ``token_k1`` or ``seq_mean_k1``, comma-separated [rollout_rs]."""
    rejection_threshold: str | Positive = ""
    """One per criterion, or one for all: ``0.999_1.001`` for k1, an upper bound otherwise [rollout_rs_threshold]."""
    mask_divergent: NonNegative = 0.0
    """
    Leave trajectories of negative advantage out of the loss if the policy in training finds their tokens less likely
    than the sampler did by more than this many nats in the mean; 0 leaves none out.
    """


class Algorithm(Section, frozen=True, kw_only=True):
    """
    Computation of the loss from rewards. The formulas are in asyncrl/algo, all names in asyncrl/config/catalogue.py.

    An unset setting takes the default of the estimator or loss that reads it; setting one that neither reads is an
    error.
    """

    advantage: str = "grpo"
    """Advantage estimator: ``grpo``, ``dr_grpo``, ``rloo``, ... or a custom ``file.py:name`` [adv_estimator]."""
    advantage_options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of a custom ``advantage``, checked against its signature at the start."""
    gamma: Fraction | None = None
    """``gae``, ``reinforce_plus_plus``: discount of later rewards, per token."""
    lam: Annotated[float, Meta(ge=0, le=1)] | None = None
    """``gae``: 0 relies on the critic after one token, 1 on the rewards to the end."""
    reward_weights: dict[str, float] = {}
    """``gdpo``: metrics of the verdict and their weights; ``reward`` is the reward itself [gdpo_reward_keys]."""
    loss: str = "clipped"
    """Policy loss: ``clipped``, ``gspo``, ``cispo``, ... or a custom ``file.py:name`` [policy_loss.loss_mode]."""
    loss_options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of a custom ``loss``, checked against its signature at the start."""
    clip_low: Positive | None = None
    """Lower bound of the ratio is ``1 - clip_low``; some losses bound another quantity [clip_ratio_low]."""
    clip_high: Positive | None = None
    """Upper bound of the ratio is ``1 + clip_high``; some losses bound another quantity [clip_ratio_high]."""
    dual_clip: NonNegative | None = None
    """``clipped``: bound of the loss at a negative advantage, in units of -advantage; 0 is off [clip_ratio_c]."""
    ratio_cap: Positive | None = None
    """``dppo_tv``, ``dppo_kl``: upper bound of the importance weight, 20 if unset; in verl 3 [clip_ratio_c]."""
    tau_pos: Positive | None = None
    """``sapo``: steepness of the gate at a positive advantage."""
    tau_neg: Positive | None = None
    """``sapo``: steepness of the gate at a negative advantage."""
    cov_ratio: Fraction | None = None
    """``clip_cov``, ``kl_cov``: fraction of all tokens to select [clip_cov_ratio, kl_cov_ratio]."""
    cov_low: float | None = None
    """``clip_cov``: only tokens with a larger covariance are selected [clip_cov_lb]."""
    cov_high: float | None = None
    """``clip_cov``: only tokens with a smaller covariance are selected [clip_cov_ub]."""
    cov_kl_coef: NonNegative | None = None
    """``kl_cov``: weight of the penalty on selected tokens [ppo_kl_coef]."""
    dro_beta: Positive | None = None
    """``dro``: weight of the squared log-ratio; required, there is no default."""
    aggregation: str = ""
    """
    Weighting of token losses: ``token-mean``, ``token-sum``, ``seq-mean-token-sum``, ``seq-mean-token-sum-norm``,
    ``seq-mean-token-mean`` or ``prompt-mean``; empty takes that of the loss, for most ``token-mean`` [loss_agg_mode].
    """
    aggregation_norm: NonNegative = 0.0
    """
    Divisor of ``seq-mean-token-sum-norm``; 0 takes ``sampling.max_tokens``, or ``environment.max_tokens`` of episodes
    [loss_scale_factor].
    """
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the initial policy; 0 loads no reference model [kl_loss_coef]."""
    kl: str = "k3"
    """KL estimator: ``k1``, ``abs``, ``k2`` or ``k3``; a ``+`` at the end takes the gradient of k2 [kl_loss_type]."""
    kl_in: Literal["loss", "reward", "both"] = "loss"
    """
    Add the KL to the loss, or subtract it from the reward. ``both``: ``kl_coef`` and ``kl`` are those in the loss, and
    the next two settings those in the reward [use_kl_loss, use_kl_in_reward].
    """
    kl_reward_coef: NonNegative = 0.0
    """With ``kl_in = "both"``: weight of the KL in the reward."""
    kl_reward: str = "k1"
    """With ``kl_in = "both"``: estimator of the KL in the reward, as ``kl``."""
    kl_target: NonNegative = 0.0
    """KL per token, in nats, to which the weight of the KL in the reward adapts; 0 is off [kl_ctrl.target_kl]."""
    kl_horizon: Count = 10_000
    """Trajectories over which that weight changes by at most a fifth, with ``kl_target`` [kl_ctrl.horizon]."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus [entropy_coeff]."""
    ess_warn: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """
    Warn (event ``ess.low``) when the effective sample size of the ratios of tokens, the metric ``ess``, falls below
    this share in the mean of ten steps; 0 never warns.
    """
    correction: Correction = Correction()


class Lora(Section, frozen=True, kw_only=True):
    """Low-rank adapters, trained instead of the model and merged into it when published."""

    rank: Natural = 0
    """Rank of an adapter; 0 trains the model itself [lora_rank]."""
    alpha: NonNegative = 0.0
    """An adapter is scaled by ``alpha / rank``; 0 takes twice the rank [lora_alpha]."""
    targets: list[str] = []
    """Linear layers with an adapter, such as ``["q_proj", "v_proj"]``; empty: all but the head [target_modules]."""
    path: str = ""
    """
    PEFT adapter directory to start from, whose rank, alpha and layers must be those above; the reference of a KL has
    the adapter too. Empty: adapters start without an effect [lora_adapter_path].
    """

    @property
    def effective_alpha(self) -> float:
        """``alpha``, or the number that its 0 stands for."""
        return self.alpha or 2.0 * self.rank


class Trainer(Section, frozen=True, kw_only=True):
    """The optimizer (AdamW) and its processes."""

    lr: Annotated[Positive, LIVE] = 1e-6
    """Learning rate after the warm-up. Set live, it is for the steps whose batch is formed from then on."""
    warmup_steps: Natural = 0
    """Optimizer steps of linear warm-up [lr_warmup_steps]."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or a cosine down to ``min_lr_ratio`` [lr_scheduler_type]."""
    min_lr_ratio: NonNegative = 0.0
    """Learning rate at the end of the cosine, as a fraction of ``lr``."""
    beta1: Decay = 0.9
    """Decay of the mean of gradients."""
    beta2: Decay = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the root of the mean of squared gradients."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    grad_clip: NonNegative = 1.0
    """Norm to which the gradient is clipped; 0 never clips."""
    mini_batches: Count = 1
    """Updates per pass over a batch, each on a part of whole groups [train_batch_size / ppo_mini_batch_size]."""
    epochs: Count = 1
    """Passes over a batch [ppo_epochs]."""
    ranks: Count = 1
    """
    Processes of each machine that share the model, its gradients and its optimizer state (FSDP2) [n_gpus_per_node].
    """
    shard_size: Limit = 0
    """
    Ranks over which the model is sharded; groups of this many ranks hold a copy of it each (HSDP). 0 or -1: all ranks
    [fsdp_size].
    """
    sequence_parallel: Count = 1
    """
    Adjacent ranks of a machine that share each packed row, for sequences too long for one device (Ulysses): each
    computes a slice of its positions, and attention for a part of the heads. It divides ``ranks`` and the model's
    attention heads; if the heads of keys and values are fewer, they are repeated [ulysses_sequence_parallel_size].
    """
    expert_parallel: bool = False
    """
    Leave each expert of a mixture on the rank that stores it, and send it tokens, instead of gathering the experts of a
    layer on every rank. The ranks that share a copy (``shard_size``) must divide the number of experts
    [expert_model_parallel_size].
    """
    nodes: Count = 1
    """Machines that train together; each runs ``asyncrl-node --role trainer`` with ``ranks`` processes [nnodes]."""
    min_nodes: Natural = 0
    """With several ``nodes``: fewest machines to train with while others are missing; 0 waits for all of them."""
    wait_s: Positive = 60.0
    """Seconds to wait for missing machines before training with fewer of them, if they are at least ``min_nodes``."""
    device: Literal["cpu", "cuda", "npu"] = "cpu"
    """Device of the trainer, one per rank, the first ones available; rollouts get the others [trainer.device]."""
    collective_timeout_s: Positive = 600.0
    """
    Seconds that a rank waits for the others in one collective, and to form their groups; then the trainer starts again.
    A rank that hangs is found much sooner. More is for ranks that save or load for long [nccl_timeout].
    """
    max_tokens_per_micro_batch: Count = 16384
    """
    Tokens of one forward and backward pass on a rank; a shared prompt counts once. The row that ``sequence_parallel``
    ranks share has as many from each of them, so that a rank takes the same memory [ppo_max_token_len_per_gpu].
    """
    gradient_checkpointing: bool | Literal["selective"] = False
    """
    Activations that the backward pass recomputes: with true all but one per layer, with ``"selective"`` all but that
    and what attention and matrix products return [enable_gradient_checkpointing].
    """
    offload: list[Literal["parameters", "moments", "reference", "activations"]] = []
    """
    Parts of the trainer that are on the host between their uses: ``parameters`` of what is trained with their
    gradients, and the optimizer's step with them; the optimizer's ``moments`` alone; the frozen ``reference``;
    ``activations`` that ``gradient_checkpointing`` keeps, the inputs of layers [param_offload / optimizer_offload].
    """
    freeze_vision: bool = False
    """Leave the vision tower of a model that reads pictures as it is [freeze_vision_tower]."""
    lora: Lora = Lora()
    logprob_gap_warn: NonNegative = 0.0
    """
    Warn once if the mean absolute difference of log-probs between sampler and trainer, with the same weights, exceeds
    this many nats in a step; 0 takes 0.0001 for ``model.dtype = "float32"`` and 0.1 for ``"bfloat16"``.
    """
    threads: Count = 1
    """Torch threads of each process."""


class Critic(Section, frozen=True, kw_only=True):
    """The value model of ``algorithm.advantage = "gae"``. All other settings are those of ``[trainer]``."""

    path: str = ""
    """Hugging Face model directory to start from; empty takes ``model.path``."""
    lr: Positive = 1e-5
    """Learning rate of the critic."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of the critic."""
    grad_clip: NonNegative = 1.0
    """Norm to which the critic's gradient is clipped; 0 never clips."""
    value_clip: Positive = 0.5
    """Largest change of a prediction from the one before the step that the loss rewards [cliprange_value]."""


class Weights(Section, frozen=True, kw_only=True):
    """Transfer of weights from trainer to rollouts."""

    backend: Literal["auto", "gloo", "shared", "nccl", "hccl"] = "auto"
    """
    Collective library, and the memory from which it sends: ``gloo`` host, ``nccl`` CUDA device, ``hccl`` Ascend NPU.
    On a device that is two buckets at each end; whole versions are on the host. ``shared`` crosses memory of one
    machine instead. The broker decides ``auto`` for all nodes: shared if trainer and rollouts share devices, which
    nccl and hccl refuse; nccl or hccl if ``trainer.device`` and ``rollout.device`` are that kind of device, where an
    ``auto`` of vLLM counts as the trainer's; and gloo otherwise.
    """
    interface: str = ""
    """
    Network interface on which each node forms its groups: a name (``eth1``), a network (``10.1.0.0/16``) or an address
    of this machine. Empty takes the interface of the node's route to the broker; ``--interface`` overrides it.
    """
    bucket_bytes: Count = 64 << 20
    """Bytes of one collective [update_weights_bucket_megabytes]."""
    deadline_s: Positive = 30.0
    """
    Seconds for one transfer with group formation; late rollouts are named and left behind. A silent rollout is left
    behind after ``broker.notice_s``, unless ``staging`` is ``bucket``.
    """
    verify: bool = False
    """Compare checksums after every transfer. Deltas and the first transfer of a group are always compared."""
    delta: bool = False
    """
    Send only changes since the last version, losslessly, and compare checksums. Pays if the network is slower than
    about 0.5 GB/s, the speed at which one core finds the changes. The trainer keeps a third copy of the weights.
    """
    staging: Literal["whole", "bucket"] = "whole"
    """
    Memory in which a rollout stages weights: a whole copy on the host, one for all workers of an engine, or a bucket on
    each of their devices. ``bucket`` pauses decoding during the whole transfer, and an engine whose transfer failed
    must be restarted.
    """
    anchor_every: Count = 20
    """
    Versions after which all weights are stored at the spool again, for rollouts that join with ``--weights spool``. In
    between, only changes are stored. Without such a rollout nothing is.
    """


class Evaluation(Section, frozen=True, kw_only=True):
    """Evaluation on ``data.held_out`` by one rollout at one pinned version, while the others go on training."""

    every_versions: Annotated[Limit, LIVE] = 10
    """Policy versions between two evaluations; 0 or -1: none between start and end [trainer.test_freq]."""
    at_start: bool = True
    """Evaluate the initial policy [val_before_train]."""
    at_end: bool = True
    """Evaluate the final policy."""
    max_prompts: Limit = 256
    """Usable rows to take from the start of each file of ``data.held_out``; 0 or -1: all [val_max_samples]."""
    max_tokens: Natural = 0
    """Longest completion, in tokens; 0 takes ``sampling.max_tokens``."""
    samples: Count = 1
    """k, completions per prompt; from 2 on, avg@k, pass@1 to pass@k and maj@k are measured [val_kwargs.n]."""
    answers: Natural = 0
    """
    Completions to keep of each evaluation, in ``samples/held_out/``: evenly spread over the prompts, and of the same
    ones each time [log_val_generations].
    """
    temperature: NonNegative = 0.0
    """Divisor of the logits; 0 is greedy, so all completions of a prompt are equal [val_kwargs.temperature]."""
    top_p: Fraction = 1.0
    """Probability mass of the likeliest tokens to sample from; 1 keeps the whole vocabulary."""
    top_k: Limit = 0
    """Number of likeliest tokens to sample from; 0 or -1 keeps the whole vocabulary."""

    def sampling(self, training: SamplingConfig) -> Sampling:
        """The settings as the message type that a lease carries; stop texts are those of training."""
        return Sampling(
            max_tokens=self.max_tokens or training.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=training.stop,
        )


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints: model, optimizer and position in the run. The manifest is written last."""

    every_steps: Limit = 0
    """Optimizer steps between two checkpoints; 0 or -1: only the last, so a dead trainer starts over [save_freq]."""
    keep: Count = 2
    """Number of newest checkpoints to keep [max_actor_ckpt_to_keep]."""
    keep_best: bool = False
    """Also keep the checkpoint with the best evaluation; ``checkpoints/best.json`` names it."""
    best_metric: str = "accuracy"
    """With ``keep_best``: ``accuracy``, or another evaluation metric of which more is better."""
    copy_to_broker: bool = True
    """
    If the trainer does not see the run directory, copy each checkpoint there before its steps count as saved: any
    machine can then go on with the run. False saves the bandwidth, and ties the run to the trainer's machine.
    """


class Trackers(Section, frozen=True, kw_only=True):
    """Experiment trackers. Each runs in its own process and cannot stop the run."""

    use: list[str] = []
    """``tensorboard``, ``wandb``, ``mlflow``, or ``file.py:name``: a function that returns a tracker [logger]."""
    options: dict[str, dict[str, str | int | float | bool | list[str]]] = {}
    """Options of each tracker by its name, such as ``wandb.mode = "offline"``."""
    timeout_s: Positive = 60.0
    """Seconds for one call of a tracker; a longer one ends its process, which is restarted."""


class Broker(Section, frozen=True, kw_only=True):
    """Addresses, heartbeats and storage of the broker."""

    bind: str | list[str] = "tcp://127.0.0.1:0"
    """
    Address of the control socket, or several; ``tcp://*:PORT`` listens on every interface. Port 0 takes a free one, the
    same for all addresses.
    """
    spool: bool = True
    """Host a spool in the broker's process. False needs at least one ``asyncrl-node --role spool``."""
    spool_bind: str | list[str] = ""
    """
    Address of the bulk socket of the spool in the broker's process, or several with one port. Empty takes a free port
    of the hosts in ``bind`` if other machines reach them, and a unix socket otherwise.
    """
    spool_ttl_s: Positive = 600.0
    """
    Seconds without a spool after which nobody waits for its payloads: groups that need them are sampled again, and are
    left out of the steps that took them.
    """
    advertise: str = ""
    """Host name or address at which all nodes reach this machine; empty takes the one at which each node did."""
    beat_s: Positive = 0.5
    """Seconds between two heartbeats of a node, sent from the loop that does its work."""
    notice_s: Positive = 2.0
    """
    Seconds without a heartbeat after which a node gets no new leases until its next one; logged as an event. Weight
    transfers go on without it, and its leases may go to others while the trainer waits.
    """
    node_ttl_s: Positive = 10.0
    """Seconds without a heartbeat after which a node is lost and its leases go to other nodes."""
    segment_bytes: Count = 256 << 20
    """Bytes at which a spool segment is closed."""
    samples: bool = True
    """Write every consumed trajectory to ``samples/``."""

    @property
    def binds(self) -> list[str]:
        """Addresses of the control socket."""
        return _listed(self.bind)

    @property
    def spool_binds(self) -> list[str]:
        """Addresses of the bulk socket; none for a unix socket."""
        if named := _listed(self.spool_bind):
            return named
        return [tcp(host, 0) for host in map(host_of, self.binds) if host] if self.serves_other_machines else []

    @property
    def serves_other_machines(self) -> bool:
        return bool(self.advertise) or not all(map(is_loopback, self.binds))


class Supervisor(Section, frozen=True, kw_only=True):
    """Restarts of child processes by ``asyncrl run``."""

    max_restarts: Natural = 5
    """Restarts of one process within ``window_s``; one more ends the run."""
    window_s: Positive = 300.0
    """Seconds over which restarts are counted."""


class Config(Section, frozen=True, kw_only=True):
    """A run file."""

    run: Run = Run()
    model: Model
    data: Data
    schedule: Schedule = Schedule()
    sampling: SamplingConfig = SamplingConfig()
    rollout: Rollout = Rollout()
    environment: Environment = Environment()
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
        """Greedy completions per prompt that serve as a baseline and are not trained on."""
        entry = ADVANTAGES.get(self.algorithm.advantage)
        return int(entry is not None and "baseline" in entry.needs)

    @property
    def trajectories_per_step(self) -> int:
        """Trajectories of one batch, greedy ones included."""
        return self.schedule.groups_per_step * (self.schedule.group_size + self.greedy_per_group)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest prompt and the longest completion together."""
        return self.data.max_prompt_tokens + max(self.longest_written("train"), self.longest_written("held_out"))

    def longest_written(self, split: Split) -> int:
        """Most tokens after a prompt: of a completion, or of an episode with those of its environment."""
        if self.environment.is_set:
            return self.environment.max_tokens
        return (split == "held_out" and self.evaluation.max_tokens) or self.sampling.max_tokens

    @property
    def max_turns(self) -> int:
        """Most turns of an episode; 0 without an environment."""
        return self.environment.max_turns if self.environment.is_set else 0


def _listed(values: str | list[str]) -> list[str]:
    return [value for value in ([values] if isinstance(values, str) else values) if value]


def to_json(config: Config) -> bytes:
    """Encode a config for the wire."""
    return msgspec.json.encode(config)


def from_json(raw: bytes) -> Config:
    """Decode a config from the wire."""
    return msgspec.json.decode(raw, type=Config)


def leaves(raw: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested dict with its full key."""
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
