"""Settings of advantages, losses and off-policy correction."""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.catalogue import (
    ADVANTAGES,
    LOSSES,
    SETTINGS,
    aggregation_path,
    estimator_entry,
    kl_path,
    loss_entry,
)
from asyncrl.config.sections.section import Count, Fraction, NonNegative, Positive, Section
from asyncrl.errors import ConfigError
from asyncrl.plug_in import is_path


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
    """
    Upper bound of the ratio is ``1 + clip_high``; some losses bound another quantity [clip_ratio_high]. Unset, each
    loss has its own; with ``clipped`` it is .28, and 4 where ``schedule.staleness`` is 4 or more, or ``auto``, and
    ``correction.mode`` is ``bypass``: asyncrl/config/correction.py.
    """
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
    sampler_kl_coef: NonNegative = 0.0
    """Weight of the KL to the policy that sampled, by the estimator ``k2``, of the tokens in the policy loss."""
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
    clip_warn: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """
    Warn (event ``clip.high``) when the loss clips more than this share of the tokens, the metric ``clip_fraction``, in
    the mean of ten steps; 1 never warns, and ``cispo`` and ``gspo`` are not warned about.
    """
    correction: Correction = Correction()

    def check_options(self) -> None:
        """Raise `ConfigError` for options of a custom function without one."""
        for key, name in (("advantage", self.advantage), ("loss", self.loss)):
            if (options := getattr(self, f"{key}_options")) and not is_path(name):
                raise ConfigError(
                    f"algorithm.{key}_options.{min(options)} is an argument of a custom function, but algorithm.{key} "
                    f"is {name!r}, which reads settings of [algorithm]; remove it"
                )

    def check_read(self) -> None:
        """Raise `ConfigError` for a setting that estimator and loss do not read, or one that they lack."""
        estimator, loss = estimator_entry(self.advantage), loss_entry(self.loss)
        given = {name for name in SETTINGS if getattr(self, name) not in (None, {})}
        for name, entry in ((self.advantage, estimator), (self.loss, loss)):
            for required in entry.required:
                if required not in given:
                    raise ConfigError(f"algorithm.{required} must be set with {name!r}: it has no default")
        if is_path(self.advantage) or is_path(self.loss):
            return
        if unread := sorted(given - estimator.reads - loss.reads):
            readers = [name for name, entry in {**ADVANTAGES, **LOSSES}.items() if unread[0] in entry.reads]
            raise ConfigError(
                f"algorithm.{unread[0]} is not read with advantage={self.advantage!r} and loss={self.loss!r}, "
                f"only with {', '.join(readers)}; remove it"
            )

    def check_aggregation(self) -> None:
        """Raise `ConfigError` for an aggregation that the loss is not defined for, or an unknown one."""
        aggregation = self.aggregation
        if aggregation:
            aggregation_path(aggregation)
        if (only := loss_entry(self.loss).aggregation) and aggregation not in ("", only):
            raise ConfigError(
                f"algorithm.aggregation is {aggregation!r}, but loss={self.loss!r} is defined per trajectory and "
                f"needs {only!r}; remove it"
            )
        if self.aggregation_norm and aggregation != "seq-mean-token-sum-norm":
            raise ConfigError(
                f"algorithm.aggregation_norm is only read with aggregation='seq-mean-token-sum-norm', "
                f"not {aggregation or 'token-mean'!r}; remove it"
            )

    def check_kl(self) -> None:
        """Raise `ConfigError` for settings of a KL that is not there."""
        kl_path(self.kl)
        plain = Algorithm()
        if not self.kl_coef:
            for key in ("kl", "kl_in", "kl_target"):
                if getattr(self, key) != getattr(plain, key):
                    raise ConfigError(f"algorithm.{key} is only read with algorithm.kl_coef above 0; set it")
        self._check_kl_reward()
        if self.kl_in != "loss" and not estimator_entry(self.advantage).counts_penalties:
            raise ConfigError(
                f"algorithm.kl_in={self.kl_in!r} has no effect with advantage={self.advantage!r} on rewards: "
                f"it compares metrics of the verdict; use kl_in='loss'"
            )
        if self.kl_in == "loss" and self.kl_target:
            raise ConfigError("algorithm.kl_target is only read with kl_in='reward' or 'both'; remove it")
        if not self.kl_target and self.kl_horizon != plain.kl_horizon:
            raise ConfigError("algorithm.kl_horizon is only read with kl_target; remove it")

    def _check_kl_reward(self) -> None:
        plain, is_both = Algorithm(), self.kl_in == "both"
        for key in ("kl_reward_coef", "kl_reward"):
            if not is_both and getattr(self, key) != getattr(plain, key):
                raise ConfigError(f"algorithm.{key} is only read with kl_in='both'; remove it, or set kl_in")
        if is_both and not self.kl_reward_coef:
            raise ConfigError(
                "algorithm.kl_in is 'both', but the KL in the reward has no weight; set algorithm.kl_reward_coef, or "
                "kl_in='loss'"
            )
        key = "kl_reward" if is_both else "kl"
        kl_path(getattr(self, key), key)
        if self.kl_in != "loss" and getattr(self, key).endswith("+"):
            raise ConfigError(
                f"algorithm.{key} is {getattr(self, key)!r}: the '+' chooses a gradient, and a reward has none; "
                f"remove it"
            )

    def check_clip(self) -> None:
        """Raise `ConfigError` for a ``dual_clip`` that would cut the loss of an unchanged policy."""
        if self.dual_clip is not None and 0 < self.dual_clip <= 1:
            raise ConfigError(
                f"algorithm.dual_clip is {self.dual_clip:g}: at or below 1 it would cut the loss of an unchanged "
                f"policy; use a value above 1, or 0 to switch it off"
            )
