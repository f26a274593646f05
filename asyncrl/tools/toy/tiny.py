"""
Reduction of a recipe for many devices to one for a CPU: the same options, with a tiny model and few rows.

    model.path ─▶ tiny model of the same architecture       data.train, data.held_out ─▶ rows in the same form
    sizes      ─▶ at most what two cores do in seconds      devices, machines         ─▶ this CPU
    lr         ─▶ at least what moves a tiny model          code, models, trackers    ─▶ stand-ins, if not here
"""

import math
import random
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.config import Config, leaves
from asyncrl.config.correction import resolved, thresholds
from asyncrl.config.run_file import decode
from asyncrl.config.sections.algorithm import Correction
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.environment import Environment
from asyncrl.config.sections.run import Run
from asyncrl.config.toml import convert
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.published import DAPO_MATH, GSM8K, PublishedDataset, PublishedProblem, write, written_row
from asyncrl.data.prompts import train_stream
from asyncrl.messages.trajectory import IMAGE_MARK
from asyncrl.plug_in import is_path
from asyncrl.reward.routing import AUTO, route
from asyncrl.tools.published_data import dataset_of, has_pictures
from asyncrl.tools.toy import drawn_squares
from asyncrl.tools.toy.tiny_models import FORMS, architecture_of, make

# ── samples ───────────────────────────────────────────────────────────────────────────────────
# Generated rows in the form in which `asyncrl data prepare` writes a published dataset.
#
#     data/gsm8k/train.parquet ─▶ gsm8k ─▶ "What is (3 + 4) mod 2? ..." with its data source and instruction ─▶ parquet
#
# There are two answers, 0 and 1, so that a model that knows how an answer is written is right every second time.

ANSWERS = ("0", "1")
NUM_ROWS = 32
LONG = 100
"""Repetitions of the question in a prompt that is too long."""
LAST_LINE = ' The last line of the solution is "Answer:" and the result.'
"""Instruction in the prompts of DAPO-Math, where a published row has it too."""


def write_sample(dataset: PublishedDataset, out: Path, *, split: str, seed: int, long_every: int = 0) -> None:
    """
    Write `NUM_ROWS` rows of a dataset, sums or pictures of squares, drawn by ``split`` and ``seed``.

    Args:
        long_every: Each n-th prompt exceeds the limit of ``--scale tiny``, for recipes that drop or shorten such
            prompts; 0 makes none.
    """
    rng = random.Random(f"{dataset.data_source} {split} {seed}")
    rows = []
    for number in range(NUM_ROWS):
        is_long = long_every > 0 and number % long_every == long_every - 1
        times = LONG if is_long else 1
        problem = _squares(rng, times) if dataset is GEO3K else _sum(rng, times, LAST_LINE * (dataset is DAPO_MATH))
        rows.append(written_row(dataset, problem, split=split, number=number))
    out.parent.mkdir(parents=True, exist_ok=True)
    write(rows, out)


def _sum(rng: random.Random, times: int, instruction: str) -> PublishedProblem:
    first, second = rng.randrange(100), rng.randrange(100)
    question = f"What is ({first} + {second}) mod 2? "
    return PublishedProblem(prompt=(question * times).strip() + instruction, answer=str((first + second) % 2))


def _squares(rng: random.Random, times: int) -> PublishedProblem:
    problems = drawn_squares.problems(rng.getrandbits(32), "train")
    drawn = next(problem for problem in problems if problem.answer in ANSWERS)
    question = drawn.prompt.removeprefix(IMAGE_MARK)
    return PublishedProblem(
        prompt=IMAGE_MARK + f"{question} " * times,
        answer=drawn.answer,
        image=drawn_squares.png(drawn),
        image_name="squares.png",
    )


# ── scale ─────────────────────────────────────────────────────────────────────────────────────

TRAJECTORIES = 16
"""Most trajectories of a step: groups of one, as those of a critic, are more than groups of four."""
MOST = {
    "schedule.group_size": 4,
    "sampling.max_tokens": 24,
    "rollout.replicas": 2,
    "rollout.slots": 16,
    "rollout.episodes": 16,
    "rollout.threads": 1,
    "reward.workers": 1,
    "trainer.mini_batches": 4,
    "trainer.ranks": 2,
    "trainer.shard_size": 2,
    "trainer.sequence_parallel": 2,
    "trainer.threads": 1,
    "weights.bucket_bytes": 1 << 20,
    "evaluation.max_tokens": 24,
    "evaluation.samples": 4,
}
"""Largest value of each setting that is a size."""
OF_EPISODES = {
    "sampling.max_tokens": 64,
    "environment.max_tokens": 256,
    "environment.max_turns": 4,
    "environment.workers": 1,
}
"""Largest values for runs with an ``[environment]``, where a call of a tool must have room."""
LEAST_LR = 5e-4
"""Learning rate at which a tiny model moves in a step; at that of a large one it would stay as it is."""
FREE_WIDTH = 0.05
"""Nats around zero in which a rejection leaves room for a step at `LEAST_LR`; in less, the rate is lower."""
INSTEAD = {
    "rollout.engine": "transformers",
    "rollout.vllm": {},
    "rollout.device": "cpu",
    "trainer.device": "cpu",
    "trainer.nodes": 1,
    "trainer.min_nodes": 0,
    "trainer.wait_s": 60.0,
    "trainer.max_tokens_per_micro_batch": 4096,
    "weights.backend": "auto",
    "weights.interface": "",
    "weights.staging": "whole",
    "broker.bind": "tcp://127.0.0.1:0",
    "broker.spool_bind": "",
    "broker.advertise": "",
    "evaluation.max_prompts": 8,
    "trackers.use": [],
    "trackers.options": {},
}
"""Replacements for settings that name devices, machines or services, or whose 0 means no limit."""
PROMPT_TOKENS, LONG_PROMPT_TOKENS = 256, 2048
"""Longest prompt: of generated rows, and of rows that are here or have tools described in them."""
LONG_EVERY = 4
"""Every n-th training prompt is too long, if the recipe drops or truncates such prompts."""
CALCULATOR = "calculator"
"""Stands in for tools and environments that are not here."""
COLUMNS = ("prompt_column", "answer_column", "image_column", "image_folders", "data_source_column", "as_chat")
"""Settings of ``[data]`` that describe files."""
LENGTHS = {"overlong": ("max_tokens", "buffer"), "length": ("max_tokens", "free")}
"""Options of verifiers that are numbers of tokens."""
SERVED = ("remote", "reward_model")
"""Verifiers that ask a server."""

Report = Callable[[str], None]
Values = dict[str, Any]
"""A configuration as a nested dict; and, in results, values by full key."""


def scaled(raw: Values, folder: Path, report: Report) -> Config:
    """
    Scale the recipe of a run file for a CPU, and check it. Its model and data are made in ``folder``, or kept from an
    earlier call; data files that exist at the recipe's paths are used as they are.

    Args:
        raw: The run file as a nested dict; unchanged.
        report: Called with a line for each value that is replaced.

    Raises:
        ConfigError: The architecture has no tiny counterpart, or the recipe is invalid.
    """
    values: Values = msgspec.to_builtins(convert(raw, Config))

    def replace(changes: Values) -> None:
        for key, value in changes.items():
            *parents, name = key.split(".")
            section = values
            for parent in parents:
                section = section[parent]
            if section[name] != value:
                report(f"scaled {key}: {section[name]} -> {value}")
                section[name] = value

    written = _longest_written(values)
    replace(_limits(values) | _code(values))
    replace(_rewards(values, _longest_written(values) / written))
    replace(_served(values))
    replace(_data(values, folder, pictures=has_pictures(raw.get("data", {}))))
    replace(_models(values, folder, report))
    del values["run"]["steps" if values["run"]["epochs"] else "epochs"]
    return decode(values)


def _longest_written(values: Values) -> int:
    return int(values["environment" if _has_environment(values) else "sampling"]["max_tokens"])


def _has_environment(values: Values) -> bool:
    return bool(convert(values["environment"], Environment).is_set)


def _limits(values: Values) -> Values:
    given = dict(leaves(values))
    most = MOST | (OF_EPISODES if _has_environment(values) else {})
    most["trainer.warmup_steps"] = 1 if values["run"]["epochs"] else values["run"]["steps"]
    sizes = {key: min(given[key], limit) for key, limit in most.items()}
    groups = TRAJECTORIES // sizes["schedule.group_size"]
    sizes["schedule.groups_per_step"] = min(given["schedule.groups_per_step"], groups)
    sizes["trainer.lr"] = max(given["trainer.lr"], _least_lr(values))
    if values["algorithm"]["advantage"] == "gae":
        sizes["critic.lr"] = max(given["critic.lr"], LEAST_LR)
    sizes["trainer.sequence_parallel"] = min(sizes["trainer.sequence_parallel"], sizes["trainer.ranks"])
    sizes["trainer.shard_size"] = min(sizes["trainer.shard_size"], sizes["trainer.ranks"])
    if window := given["schedule.order_window"]:
        shrunk = sizes["schedule.groups_per_step"] / given["schedule.groups_per_step"]
        sizes["schedule.order_window"] = max(1, int(window * shrunk))
    return INSTEAD | sizes


def _least_lr(values: Values) -> float:
    """Lowest learning rate, which does not take the policy so far in a step that all trajectories are rejected."""
    correction = resolved(convert(values["algorithm"]["correction"], Correction))
    widths = [
        min(-one.low, one.high) if one.divergence == "k1" else math.sqrt(2 * one.high)  # k2 and k3 are near r * r / 2
        for one in thresholds(correction).rejections
    ]
    return LEAST_LR * min([1.0, *(width / FREE_WIDTH for width in widths)])


# ── code ──────────────────────────────────────────────────────────────────────────────────────
# Stand-ins for code of the user, folders and servers that are not here.


def _code(values: Values) -> Values:
    environment, reward, lora = values["environment"], values["reward"], values["trainer"]["lora"]
    changes: Values = {}
    run_dir = Path(values["run"]["dir"])
    if run_dir.is_absolute() and not run_dir.exists():
        changes["run.dir"] = Run().dir
    if _has_environment(values):
        changes |= _environment(environment)
    if reward["group"] and not _is_here(reward["group"]):
        changes |= {"reward.group": "", "reward.group_options": {}}
    if lora["path"] and not Path(lora["path"]).exists():
        changes["trainer.lora.path"] = ""
    return changes


def _environment(environment: Values) -> Values:
    """Tools that are here, and a calculator in place of others."""
    function, command, tools = environment["function"], environment["command"], environment["tools"]
    own = (function and _is_here(function)) or (command and shutil.which(command[0]))
    plain = {"environment.tool_parser": "plain"}  # the template of a tiny model shows no tools
    if own or (tools and all(map(_is_here, tools))):
        return plain if tools else {}
    here = [tool for tool in tools if _is_here(tool)]
    nothing = msgspec.to_builtins(Environment())
    unset = {key: nothing[key] for key in ("function", "command", "options", "seats", "container", "python")}
    changes = unset | {"tools": here if CALCULATOR in here else [*here, CALCULATOR]}
    return {f"environment.{key}": value for key, value in changes.items()} | plain


def _rewards(values: Values, shrunk: float) -> Values:
    """
    Verifiers whose limits fit the shorter completions, and those of the rows' data sources in place of missing ones.

    Args:
        shrunk: Tokens of the longest completion, divided by those before.
    """

    def scaled_one(part: Values) -> Values:
        function, options = part["function"], part["options"]
        if function in SERVED or not _is_here(function):
            return part | {"function": AUTO, "options": {}}
        tokens = {name: options[name] for name in LENGTHS.get(function, ()) if name in options}
        return part | {"options": options | {name: max(1, round(number * shrunk)) for name, number in tokens.items()}}

    reward = values["reward"]
    whole = scaled_one({"function": reward["function"], "options": reward["options"]})
    changes = {f"reward.{key}": value for key, value in whole.items()}
    changes["reward.parts"] = [scaled_one(part) for part in reward["parts"]]
    return changes


def _served(values: Values) -> Values:
    """No models of servers, unless code of the user is here that may ask them."""
    environment, reward = values["environment"], values["reward"]
    rewards = [reward["function"], reward["group"], *(part["function"] for part in reward["parts"])]
    code = [*rewards, environment["function"], *environment["tools"]]
    return {} if environment["command"] or any(map(is_path, code)) else {"models": {}}


def _is_here(function: str) -> bool:
    """False for the name of code that is not on this machine: a file, a package, the program of an MCP server."""
    if not is_path(function):
        return function != "shell"  # needs a container
    where, _, rest = function.partition(":") if function.startswith("mcp:") else function.rpartition(":")
    if where == "mcp":
        return bool(shutil.which(next(iter(rest.split()), "")))
    try:
        return Path(where).is_file() if where.endswith(".py") else find_spec(where) is not None
    except (ImportError, ValueError):
        return False


# ── data ──────────────────────────────────────────────────────────────────────────────────────


def _data(values: Values, folder: Path, *, pictures: bool) -> Values:
    """Make rows in place of files that are not here."""
    data, seed = values["data"], values["run"]["seed"]
    named = {key: [data[key]] if isinstance(data[key], str) else data[key] for key in ("train", "held_out")}
    paths = [Path(path) for key in named for path in named[key] if path]
    likely = GEO3K if pictures else next(filter(None, map(dataset_of, paths)), GSM8K)
    allows_long = data["filter_overlong_prompts"] or data["truncation"] != "error"
    changes: Values = {}
    for key in (key for key in named if any(named[key])):
        long_every = LONG_EVERY if allows_long and key == "train" else 0
        changes[f"data.{key}"] = [
            str(_sample(path, f"{key}-{place}" if place else key, folder, likely, seed=seed, long_every=long_every))
            for place, path in enumerate(map(Path, named[key]))
        ]
    if not any(path.is_file() for path in paths):
        plain = msgspec.to_builtins(Data(train=""))
        changes |= {f"data.{name}": plain[name] for name in COLUMNS}
    is_long = any(path.is_file() for path in paths) or _has_environment(values)
    return changes | {"data.max_prompt_tokens": LONG_PROMPT_TOKENS if is_long else PROMPT_TOKENS}


def _sample(path: Path, split: str, folder: Path, likely: PublishedDataset, *, seed: int, long_every: int) -> Path:
    """The file itself if it exists, else a generated one in the form of its dataset, or of the ``likely`` one."""
    if path.is_file():
        return path
    dataset = likely if likely is GEO3K else dataset_of(path) or likely
    sample = (
        folder / f"{dataset.data_source.replace('/', '-')}{'-with-long' if long_every else ''}" / f"{split}.parquet"
    )
    write_sample(dataset, sample, split=split, seed=seed, long_every=long_every)
    return sample


# ── models ────────────────────────────────────────────────────────────────────────────────────

SHOWN = 256
"""Rows that a model is fitted to, at most."""


def _models(values: Values, folder: Path, report: Report) -> Values:
    """Make the policy and the critic."""
    reward, seed = values["reward"], values["run"]["seed"]
    prompts = list(islice(train_stream(convert(values["data"], Data), seed).prompts(), SHOWN))
    may_call = CALCULATOR in values["environment"]["tools"]
    sources = "-".join(dict.fromkeys(prompt.data_source.replace("/", "-") or "rows" for prompt in prompts))
    named = [reward["function"], *(part["function"] for part in reward["parts"])]
    routed = [route(prompt.data_source) for prompt in prompts]
    verifiers = [name for name in FORMS if name in named] or [name for name in FORMS if name in routed] or ["gsm8k"]
    changes = {}
    for key in ("model.path", "critic.path"):
        section = key.partition(".")[0]
        if not (path := values[section]["path"]):
            continue
        architecture = architecture_of(path, has_pictures=any(prompt.images for prompt in prompts))
        directory = folder / f"{architecture}-{sources}{'-calls' if may_call else ''}"
        make(directory, architecture, prompts, verifiers, seed=seed, may_call=may_call, report=report)
        changes[key] = str(directory)
    return changes
