"""
`asyncrl init`: writes a run file and a reward function for the model, data and devices that are here.

    find ─▶ choose ─▶ run.toml, reward.py ─▶ read back, reward tried ─▶ next commands
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asyncrl.cli.data import token_counter
from asyncrl.cli.plug_ins.reward import attempt, read_rows, run_config, summary_lines
from asyncrl.cli.start.findings import Findings, find_data, find_held_out, find_machine, find_model
from asyncrl.cli.start.run_text import Choices, choose, render, stub
from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError
from asyncrl.node.hub import model_folder, model_name
from asyncrl.node.machine.machine import ENGINES, TRAIN, missing_packages
from asyncrl.reward.routing import unrouted
from asyncrl.weights.groups.device import installed_version

RUN_FILE, REWARD_FILE = "run.toml", "reward.py"
TRIED_ROWS = 3

Say = Callable[[str], None]


def init(folder: Path, model: str | None, data: str | None, columns: Mapping[str, str], say: Say) -> None:
    """
    Write the files to ``folder``, and say what was found and what comes next.

    Args:
        model: Model directory; None looks for one.
        data: Dataset; None looks for one.
        columns: ``prompt`` and ``answer``, as far as the user named them.

    Raises:
        ConfigError: Something cannot be found out, or a file is in the way. Nothing is written then.
    """
    run_file, reward_file = folder / RUN_FILE, folder / REWARD_FILE
    found = _find(model, data, columns, say)
    chosen = choose(found)
    has_route = not unrouted(Reward(), found.data.data_sources)
    reward = "auto" if has_route else f"{reward_file}:score"
    written = {run_file: render(found, chosen, reward)}
    if not has_route:
        written[reward_file] = stub(str(run_file))
    _write(written)
    for line in _described(found, chosen):
        say(line)
    for line in _tried(run_config(run_file), reward):
        say(line)
    say(f"wrote     {', '.join(map(str, written))}")
    say("next:")
    tries = [f"asyncrl reward try {run_file}"] if reward_file in written else []
    for command in (*tries, f"asyncrl run {run_file} --dry-run", f"asyncrl run {run_file}"):
        say(f"  {command}")


def _find(model: str | None, data: str | None, columns: Mapping[str, str], say: Say) -> Findings:
    name = model_name(model) if model else None
    try:
        found_model = find_model(model_folder(name, "--model", say) if name else model)
    except ConfigError as error:
        raise ConfigError(f"{error}{_also_missing(data, columns)}") from error
    count = None if missing_packages(TRAIN) else token_counter(Path(found_model.path), Data(train=""))
    found_data = find_data(data, columns, count, has_template=found_model.has_template)
    devices, cores = find_machine(os.environ)
    has_vllm = any(installed_version(name) for name in ENGINES)
    return Findings(found_model, found_data, find_held_out(found_data.path), devices, cores, has_vllm)


def _also_missing(data: str | None, columns: Mapping[str, str]) -> str:
    """End of a sentence with what is wrong with the data; empty if nothing is."""
    try:
        find_data(data, columns, None)
    except ConfigError as error:
        return f"; and {error}"
    return ""


def _write(written: Mapping[Path, str]) -> None:
    for path in written:
        if path.exists():
            raise ConfigError(f"{path} exists, and is left alone: move it away, or name another folder")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _described(found: Findings, chosen: Choices) -> Sequence[str]:
    model, data = found.model, found.data
    length = f"longest prompt {data.longest_prompt} tokens{'' if data.is_counted else ' (estimated)'}"
    bad = f", {data.num_bad} of them cannot be used" if data.num_bad else ""
    form = "; the chat template is applied (data.as_chat)" if data.as_chat else ""
    return [
        f"model     {model.path}: {model.num_parameters:,} parameters, {model.positions or 'unknown'} positions",
        f"data      {data.path}: {data.num_rows:,} rows{bad}; {data.columns}; {length}{form}",
        f"held out  {_held_out(found.held_out)}",
        f"devices   {chosen.placement}",
    ]


def _held_out(found: Sequence[str]) -> str:
    if len(found) > 1:
        return f"could be any of {', '.join(found)}: name one as data.held_out"
    return found[0] if found else "none found: name a file as data.held_out"


def _tried(config: Config, reward: str) -> Sequence[str]:
    """The reward, tried on the first rows."""
    rows = read_rows(config, TRIED_ROWS)
    done = attempt(config, rows)
    first, *rest = summary_lines(done)
    return [f"reward    {reward}, tried on {len(rows)} rows: {first}", *rest]
