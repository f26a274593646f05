"""Run and schedule: model, optimizer, rewards, checkpoints, trackers, names; groups, steps and staleness."""

from math import ceil
from pathlib import Path
from typing import Any

from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.rules.engine import longest_written
from asyncrl.tools.verl.trainers import AUGUST

A, M = "actor_rollout_ref.actor", "actor_rollout_ref.model"
OPTIM = f"{A}.optim"
DROPOUTS = ("attention_dropout", "embd_pdrop", "resid_pdrop")
"""Dropout rates in config.json. asyncrl trains without dropout, so 0 needs no override."""
TRACKERS = {"tensorboard": "", "wandb": "project", "mlflow": "experiment", "trackio": "project"}
"""asyncrl's trackers, and the option of each that takes verl's project_name; empty without one."""


MEGATRON_LORA = ("lora.rank", "lora.alpha", "lora.target_modules")
MEGATRON_LAYERS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Hugging Face's names of a layer's linear maps, by Megatron's."""
PENALTY = (
    *(f"reward.overlong_buffer.{name}" for name in ("enable", "len", "penalty_factor")),
    *(f"reward.reward_kwargs.overlong_buffer_cfg.{name}" for name in ("enable", "len", "penalty_factor")),
    "reward.reward_kwargs.max_resp_len",
)
"""Options of DAPO's penalty on long completions, in the section of main_dapo and in that of the others."""


def model(recipe: LaunchRecipe) -> None:
    """Set the model, its overrides, its adapter and the arguments of the chat template."""
    if path := recipe.get(f"{M}.path"):
        home = str(Path(path).expanduser()) if str(path).startswith("~") else str(path)
        is_hub = not home.startswith((".", "/")) and home.count("/") == 1 and not home.startswith("models/")
        comment = f"a model directory: hf download {home} --local-dir {home}" if is_hub else ""
        recipe.put("model.path", home, comment)
    for key, value in recipe.below(f"{M}.override_config").items():
        name = key.removeprefix("model_config.")
        if name in DROPOUTS and not value:
            recipe.say(f"{M}.override_config.{key}", "not needed", "there is no dropout")
        elif name != "attn_implementation" and not name.startswith("moe_config.") and value is not None:
            recipe.put(f"model.overrides.{name}", value)
    for key, value in recipe.below("data.apply_chat_template_kwargs").items():
        recipe.put(f"data.chat_template_kwargs.{key}", value)
    _adapter(recipe)


def _adapter(recipe: LaunchRecipe) -> None:
    start = recipe.get(f"{M}.lora_adapter_path", "")
    rank, alpha = recipe.get(f"{M}.lora_rank", 0), recipe.get(f"{M}.lora_alpha", 16)
    targets = recipe.get(f"{M}.target_modules", "all-linear")
    if recipe.is_megatron:
        rank, alpha = recipe.get(f"{M}.lora.rank", rank), recipe.get(f"{M}.lora.alpha", alpha if rank else 32)
        targets = _megatron_targets(recipe, targets)
    else:
        for name in ("rank", "alpha", "target_modules"):
            recipe.say(f"{M}.lora.{name}", "not needed", "verl reads it with Megatron alone; here lora_rank counts")
    if rank:
        recipe.put("trainer.lora.rank", rank)
        recipe.put("trainer.lora.alpha", float(alpha))
        if targets != "all-linear":
            recipe.put("trainer.lora.targets", targets if isinstance(targets, list) else [targets])
        if start:
            recipe.put("trainer.lora.path", str(start), "rank, alpha and targets must be those of this adapter")
        return
    if start:
        why = "verl takes rank and alpha from the adapter: give them as lora_rank and lora_alpha as well"
        recipe.say(f"{M}.lora_adapter_path", "not supported", why)
        return
    for name in ("lora_rank", "lora_alpha", "target_modules", "lora_adapter_path", *MEGATRON_LORA):
        recipe.say(f"{M}.{name}", "not needed", "the model itself is trained")


def _megatron_targets(recipe: LaunchRecipe, default: object) -> object:
    """Layers with an adapter, by their names in Hugging Face's models; Megatron's layers are several of these each."""
    named = recipe.get(f"{M}.lora.target_modules")
    if named is None:
        return default
    layers = named if isinstance(named, list) else [named]
    if set(layers) == set(MEGATRON_LAYERS) or not set(layers) <= set(MEGATRON_LAYERS):
        return "all-linear" if set(layers) == set(MEGATRON_LAYERS) else layers
    return [name for layer in layers for name in MEGATRON_LAYERS[layer]]


def optimizer(recipe: LaunchRecipe) -> None:
    """Set Adam's betas, the schedule of the learning rate, and the largest norm of the gradient."""
    recipe.put("trainer.grad_clip", float(recipe.get(f"{A}.grad_clip", recipe.get(f"{OPTIM}.clip_grad", 1.0))))
    betas = recipe.get(f"{OPTIM}.betas")
    if betas:
        recipe.put("trainer.beta1", float(betas[0]))
        recipe.put("trainer.beta2", float(betas[1]))
    _warm_up(recipe)
    style = recipe.get(f"{OPTIM}.lr_scheduler_type", recipe.get(f"{OPTIM}.warmup_style"))
    if (style or recipe.get(f"{OPTIM}.lr_decay_style", "constant")) != "cosine":
        for name in ("min_lr_ratio", "min_lr", "lr_decay_steps"):
            recipe.say(f"{OPTIM}.{name}", "not needed", "the learning rate is constant after its warm-up")
        return
    recipe.put("trainer.lr_schedule", "cosine")
    lr = float(recipe.get(f"{OPTIM}.lr", 1e-6))
    lowest = recipe.get(f"{OPTIM}.min_lr_ratio", float(recipe.get(f"{OPTIM}.min_lr", 0.0)) / lr)
    recipe.put("trainer.min_lr_ratio", float(lowest))


def _warm_up(recipe: LaunchRecipe) -> None:
    steps, ratio = recipe.get(f"{OPTIM}.lr_warmup_steps", -1), recipe.get(f"{OPTIM}.lr_warmup_steps_ratio", 0.0)
    total = recipe.settings.get("run.steps")
    if steps < 0 and ratio and total:
        steps = int(ratio * total)
    elif steps < 0 and ratio:
        why = "the number of steps is not known here: set trainer.warmup_steps to so large a part of it"
        recipe.say(f"{OPTIM}.lr_warmup_steps_ratio", "substituted", why)
    if steps > 0:
        recipe.put("trainer.warmup_steps", steps, "steps in verl too: it counts fetched batches, not updates")


def rewards(recipe: LaunchRecipe) -> None:
    """Set the reward of each row's data source, and DAPO's penalty on long completions if verl applies it."""
    manager = recipe.get("reward.reward_manager.name", "naive")
    if manager in ("prime", "gdpo"):
        why = "each trajectory is graded for itself, in processes that can be killed, and all parts are kept"
        recipe.say("reward.reward_manager.name", "not needed", why)
    elif manager in ("rate_limited", "remote"):
        why = "reward.workers processes grade at once, and no other rate is kept"
        recipe.say("reward.reward_manager.name", "substituted", why)
    elif manager not in ("naive", "dapo"):
        what = "write your rewards as reward.function = 'file.py:name', or as [[reward.parts]]"
        recipe.say("reward.reward_manager.name", "not supported", what)
        return
    function, options = _custom(recipe)
    why = "called with the arguments of verl's compute_score" if function else "by each row's data source, as in verl"
    if not function and (path := _reward_model(recipe)):
        function, why = "reward_model", "the model's score alone, as in verl"
        options = {"url": "http://127.0.0.1:8000/classify", "model": path, "activation": False}
    if manager != "dapo" or not recipe.get(f"{_overlong(recipe)}.enable", False):
        recipe.put("reward.function", function or "auto", why)
        if options:
            recipe.put("reward.options", options)
        for key in PENALTY:
            recipe.say(key, "not needed", "verl applies it only with reward_manager dapo and enable")
        return
    recipe.put(
        "reward.parts",
        [
            {"name": "answer_reward", "function": function or "auto", "options": options, "correct": True},
            {"name": "overlong", "function": "overlong", "options": _penalty(recipe)},
        ],
        f"{why}, plus reward_manager dapo's penalty",
    )


def _overlong(recipe: LaunchRecipe) -> str:
    """Section of the penalty that is on, of main_dapo's own and the general one; without either, of its trainer."""
    sections = ["reward.overlong_buffer", "reward.reward_kwargs.overlong_buffer_cfg"]
    if not (recipe.trainer and recipe.trainer.filters and recipe.release != AUGUST):
        sections.reverse()
    chosen = next((section for section in sections if recipe.get(f"{section}.enable", False)), sections[0])
    sections.remove(chosen)
    for name in ("enable", "len", "penalty_factor", "log"):
        recipe.say(f"{sections[0]}.{name}", "not needed", f"{chosen} counts")
    return chosen


def _reward_model(recipe: LaunchRecipe) -> str:
    """Path of the model whose scores are the rewards; empty without one."""
    section = "reward.reward_model"
    path = recipe.get(f"{section}.model_path", recipe.get(f"{section}.model.path", ""))
    if not (path and recipe.get(f"{section}.enable", False)):
        return ""
    served = f"vllm serve {path} --runner pooling, on port 8000, before the run starts"
    recipe.say(f"{section}.enable", "substituted", f"a server of your own takes its place: {served}")
    return str(path)


def _custom(recipe: LaunchRecipe) -> tuple[str, dict[str, Any]]:
    """A custom reward function as ``file.py:name`` or ``module:name``, and its options; empty without one."""
    section = "reward.custom_reward_function"
    path = recipe.get(f"{section}.path", "")
    if not path:
        return "", {}
    options = recipe.get(f"{section}.reward_kwargs", {}) | recipe.below(f"{section}.reward_kwargs")
    return f"{path.removeprefix('pkg://')}:{recipe.get(f'{section}.name', 'compute_score')}", options


def _penalty(recipe: LaunchRecipe) -> dict[str, float]:
    section = _overlong(recipe)
    return {
        "max_tokens": recipe.get("reward.reward_kwargs.max_resp_len", longest_written(recipe)),
        "buffer": recipe.get(f"{section}.len", 0) or 1,
        "factor": float(recipe.get(f"{section}.penalty_factor", 1.0)),
    }


def checkpoints(recipe: LaunchRecipe) -> None:
    """Set the interval between checkpoints."""
    every, publish = recipe.get("trainer.save_freq", -1), recipe.settings["schedule.steps_per_publish"]
    if every > 0:
        comment = f"save_freq counts versions of {publish} steps" if publish > 1 else ""
        recipe.put("checkpoint.every_steps", every * publish, comment)
    else:
        recipe.say("trainer.save_freq", "not needed", "without checkpoint.every_steps the last step is saved")
    if recipe.get("trainer.resume_mode") == "auto":
        recipe.say("trainer.resume_mode", "not needed", "asyncrl run FILE --resume goes on with the newest run of FILE")


def trackers(recipe: LaunchRecipe) -> None:
    """Set the trackers, and the run's name and directory."""
    wanted = recipe.get("trainer.logger", ["console", "wandb"] if "trainer.project_name" in recipe.given else [])
    named = wanted if isinstance(wanted, list) else [wanted]
    if here := [name for name in named if name in TRACKERS]:
        recipe.put("trackers.use", here)
    else:
        recipe.say("trainer.logger", "not needed", "the console has a line for each step, as always")
    if other := [name for name in named if name not in TRACKERS and name not in ("console", "file")]:
        why = f"without {', '.join(other)}; a tracker of your own is 'file.py:name' in trackers.use"
        recipe.say("trainer.logger", "substituted", why)
    project = recipe.get("trainer.project_name")
    labelled = [f"trackers.options.{name}.{TRACKERS[name]}" for name in here if TRACKERS[name]]
    if project and labelled:
        for setting in labelled:
            recipe.put(setting, str(project))
    if not labelled:
        recipe.say("trainer.project_name", "not needed", "no tracker of this run has projects")
    _names(recipe)


def _names(recipe: LaunchRecipe) -> None:
    name, folder = recipe.get("trainer.experiment_name"), recipe.get("trainer.default_local_dir")
    if name:
        recipe.put("run.name", str(name).replace("/", "-"))
    if folder:
        path = Path(str(folder)).expanduser()
        recipe.put("run.dir", str(path.parent if path.name == str(name) else path))


def required(recipe: LaunchRecipe) -> list[str]:
    """Sentences about settings that every run needs and the launch does not give."""
    needed = {"model.path": f"{M}.path", "data.train": "data.train_files"}
    return [
        f"{here} is missing: set it, or {recipe.way_to_set(there)}"
        for here, there in needed.items()
        if not recipe.settings.get(here)
    ]


# ── schedule ───────────────────────────────────────────────────────────────────────────────────
# Schedule: groups, steps and staleness, which verl's trainers count in different units.
#
#                  groups of a step P               T   S        length
#     fully_async  ppo_mini_batch_size x require_.. T   S        total_rollout_steps / (P T) versions of T steps
#     one_step_off train_batch_size                 1   1        epochs x floor(rows / P) steps
#     synchronous  train_batch_size                 1   0        the same; trainer.v1 has asynchronous modes too

A, ASYNC, V1 = "actor_rollout_ref.actor", "async_training", "trainer.v1"
FILTERS = "data.filter_overlong_prompts"
EPOCHS = 30
"""verl's default of trainer.total_epochs."""


def schedule(recipe: LaunchRecipe) -> None:
    """Set groups, steps, staleness and filter by the rules of the launch's trainer."""
    recipe.put("schedule.group_size", recipe.get("actor_rollout_ref.rollout.n", 1))
    {"fully_async": _fully_async, "one_step_off": _one_step_off, "synchronous": _synchronous}[recipe.mode](recipe)
    _filter(recipe)


def _fully_async(recipe: LaunchRecipe) -> None:
    mini, fetched = recipe.get(f"{A}.ppo_mini_batch_size", 256), recipe.get(f"{ASYNC}.require_batches", 1)
    product = f"ppo_mini_batch_size {mini} x require_batches {fetched}"
    recipe.put("schedule.groups_per_step", mini * fetched, product if fetched > 1 else "")
    if fetched > 1:
        recipe.put("trainer.mini_batches", fetched, "require_batches: updates of one step")
    publish = recipe.get(f"{ASYNC}.trigger_parameter_sync_step", 4)
    recipe.put("schedule.steps_per_publish", publish)
    recipe.put("schedule.staleness", float(recipe.get(f"{ASYNC}.staleness_threshold", 0.1)))
    recipe.put("schedule.order", "completion", "verl queues groups as they complete; 'fifo' would bound their age")
    if not recipe.get(f"{ASYNC}.partial_rollout", True):
        recipe.put("schedule.partial_rollout", False)
    recipe.say("data.train_batch_size", "not needed", "verl's fully asynchronous trainer requires 0")
    _length_of_fully_async(recipe, mini * fetched, publish)


def _length_of_fully_async(recipe: LaunchRecipe, groups: int, publish: int) -> None:
    wanted, epochs = recipe.get("rollout.total_rollout_steps", 100), recipe.get("trainer.total_epochs", EPOCHS)
    if recipe.release != AUGUST:
        epochs = min(epochs, recipe.get("rollout.total_epochs", 10))
    used, comment = wanted, f"{wanted:,} groups (total_rollout_steps)"
    if recipe.num_rows is not None and recipe.num_rows * epochs < wanted:
        used = recipe.num_rows * epochs
        comment = f"{used:,} groups ({epochs} epochs of {recipe.num_rows:,} rows)"
    versions = max(1, used // (groups * publish))
    comment += f" are {versions} versions of {publish} steps of {groups} groups"
    if recipe.num_rows is None:
        comment += f"; verl ends after {epochs} epochs if that is sooner: then set epochs in place of steps"
    recipe.put("run.steps", versions * publish, comment)
    recipe.say("trainer.total_training_steps", "not needed", "total_rollout_steps decides")


def _one_step_off(recipe: LaunchRecipe) -> None:
    _batch(recipe)
    recipe.put("schedule.steps_per_publish", 1)
    recipe.put("schedule.staleness", 1.0, "one batch ahead")
    recipe.put("schedule.partial_rollout", False, "verl sends weights when the batch has been generated")
    _length(recipe)


def _synchronous(recipe: LaunchRecipe) -> None:
    _batch(recipe)
    kind = recipe.get(f"{V1}.trainer_mode", "sync") if recipe.get("trainer.use_v1", True) else "sync"
    recipe.put("schedule.steps_per_publish", 1)
    recipe.put("schedule.staleness", 0.0)
    if kind == "colocate_async":
        ahead = float(recipe.get(f"{V1}.colocate_async.num_warmup_batches", 1))
        recipe.put("schedule.staleness", ahead, "batches ahead: num_warmup_batches")
    if kind == "separate_async":
        _separate_async(recipe)
    if kind != "sync":
        recipe.put("schedule.order", "completion")
        _max_staleness(recipe)
    _length(recipe)


def _separate_async(recipe: LaunchRecipe) -> None:
    publish = recipe.get(f"{V1}.separate_async.parameter_sync_step", 4)
    recipe.put("schedule.steps_per_publish", publish)
    groups = recipe.get(f"{A}.ppo_mini_batch_size", 256)
    recipe.put("schedule.groups_per_step", groups, "train_batch_size / parameter_sync_step")
    recipe.settings.pop("trainer.mini_batches", None)
    ahead = float(recipe.get(f"{V1}.separate_async.num_warmup_batches", 1))
    recipe.put("schedule.staleness", ahead, "train batches ahead: num_warmup_batches")


def _max_staleness(recipe: LaunchRecipe) -> None:
    sampler = f"{V1}.sampler"
    limit = recipe.get(f"{sampler}.max_off_policy_threshold", 8) - 1
    recipe.put("schedule.max_staleness", limit, "verl counts the version of the lease as 1")
    if recipe.get(f"{sampler}.max_off_policy_strategy", "drop") == "drop":
        recipe.put("schedule.on_straggler", "reissue", "verl drops the prompt; here it is sampled again")


def _batch(recipe: LaunchRecipe) -> None:
    """Set a step to one train batch, with an update for each of its mini-batches."""
    groups, mini = recipe.get("data.train_batch_size", 1024), recipe.get(f"{A}.ppo_mini_batch_size", 256)
    recipe.put("schedule.groups_per_step", groups)
    if (updates := ceil(groups / mini)) > 1:
        recipe.put("trainer.mini_batches", updates, f"train_batch_size {groups} / ppo_mini_batch_size {mini}")


def _length(recipe: LaunchRecipe) -> None:
    publish = recipe.settings["schedule.steps_per_publish"]
    groups = recipe.settings["schedule.groups_per_step"] * publish
    epochs, steps = recipe.get("trainer.total_epochs", EPOCHS), recipe.get("trainer.total_training_steps")
    if steps is not None:
        recipe.put("run.steps", steps * publish)
        recipe.say("trainer.total_epochs", "not needed", "total_training_steps decides")
    elif recipe.num_rows is None:
        leaves_out = ", and rows that filter_overlong_prompts drops" if recipe.get(FILTERS, False) else ""
        why = f"verl leaves out the part of each epoch that is no whole batch{leaves_out}"
        recipe.put("run.epochs", epochs, why)
    else:
        steps = max(1, epochs * (recipe.num_rows // groups)) * publish
        comment = f"{epochs} epochs of floor({recipe.num_rows:,} rows / {groups:,}) train batches"
        recipe.put("run.steps", steps, comment)


def _filter(recipe: LaunchRecipe) -> None:
    section = "algorithm.filter_groups"
    reads = recipe.release == AUGUST or bool(recipe.trainer and recipe.trainer.filters)
    if recipe.mode != "synchronous" or not reads:
        why = "verl's trainer of this script does not read it; schedule.filter = 'zero_variance' does it here"
        for name in ("enable", "metric", "max_num_gen_batches"):
            recipe.say(f"{section}.{name}", "not needed", why)
        return
    if not recipe.get(f"{section}.enable", False):
        return
    recipe.put("schedule.filter", "zero_variance")
    metric = recipe.get(f"{section}.metric", "")
    if metric and metric not in ("seq_reward", "seq_final_reward", "score"):
        recipe.put("schedule.filter_metric", "correct" if metric == "acc" else metric)
    if batches := recipe.get(f"{section}.max_num_gen_batches", 0):
        groups = batches * recipe.settings["schedule.groups_per_step"]
        recipe.put("schedule.filter_patience", groups, f"groups of {batches} batches")
