"""
Schedule: groups, steps and staleness, which verl's trainers count in different units.

                 groups of a step P               T   S        length
    fully_async  ppo_mini_batch_size x require_.. T   S        total_rollout_steps / (P T) versions of T steps
    one_step_off train_batch_size                 1   1        epochs x floor(rows / P) steps
    synchronous  train_batch_size                 1   0        the same; trainer.v1 has asynchronous modes too
"""

from math import ceil

from asyncrl.tools.verl.recipe import LaunchRecipe

A, ASYNC, V1 = "actor_rollout_ref.actor", "async_training", "trainer.v1"
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
    used, comment = wanted, f"{wanted:,} groups (total_rollout_steps)"
    if recipe.num_rows is not None and recipe.num_rows * epochs < wanted:
        used = recipe.num_rows * epochs
        comment = f"{used:,} groups ({epochs} epochs of {recipe.num_rows:,} rows)"
    versions = max(1, used // (groups * publish))
    comment += f" are {versions} versions of {publish} steps of {groups} groups"
    if recipe.num_rows is None:
        comment += f"; verl ends after {epochs} epochs if that is sooner: then set epochs in place of steps"
    recipe.put("run.steps", versions * publish, comment)
    recipe.say("trainer.total_epochs", "mapped", "run.steps: total_rollout_steps decides, if the rows are enough")
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
        recipe.put("run.epochs", epochs, "verl leaves out the part of each epoch that is no whole batch")
    else:
        steps = max(1, epochs * (recipe.num_rows // groups)) * publish
        comment = f"{epochs} epochs of floor({recipe.num_rows:,} rows / {groups:,}) train batches"
        recipe.put("run.steps", steps, comment)
        recipe.say("trainer.total_epochs", "mapped", f"run.steps = {steps}: {comment}")


def _filter(recipe: LaunchRecipe) -> None:
    section = "algorithm.filter_groups"
    if recipe.mode != "synchronous":
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
