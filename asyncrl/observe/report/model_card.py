"""
The README.md of an exported model: where it comes from and what it was measured to do, from its run's own files.

What they do not say is left out; nothing is guessed, a licence least of all.
"""

from collections.abc import Iterator
from importlib.metadata import version

import msgspec

from asyncrl.config.sections import Algorithm, Reward, leaves
from asyncrl.observe.report.curves import interval
from asyncrl.observe.report.held_out import of_many, sources
from asyncrl.observe.run_record import HeldOut, RunRecord

HEADER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- reinforcement-learning
- asyncrl
---
"""

FACTS = {
    "base model": "model.path",
    "advantage": "algorithm.advantage",
    "loss": "algorithm.loss",
    "prompts a step": "schedule.groups_per_step",
    "completions a prompt": "schedule.group_size",
    "staleness, at most": "schedule.staleness",
    "completion tokens, at most": "sampling.max_tokens",
    "sampling temperature": "sampling.temperature",
    "reward": "reward.function",
    "learning rate": "trainer.lr",
    "seed": "run.seed",
    "training data": "data.train",
    "held-out data": "data.held_out",
}
"""Row of the card to setting."""

LOADING = """\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}")
```

or `vllm serve {name}`.
"""


def model_card(record: RunRecord, name: str, *, step: int, policy_version: int, dtype: str | None) -> str:
    """
    The text.

    Args:
        name: Of the directory it is exported to.
        step: Optimizer steps these weights have seen.
        policy_version: Of these weights.
        dtype: They were cast to; None if they were not.
    """
    base = record.config.get("model.path", "a language model")
    about = (
        f"`{base}` after {step} optimizer steps of asynchronous reinforcement learning: "
        f"run `{record.name}`, policy version {policy_version}. Exported by asyncrl {version('asyncrl')}."
    )
    training = _table(["setting", "value"], [*_facts(record, step, dtype)])
    parts = [HEADER, f"# {name}", "", about, "", "## Training", "", *training, "", *_measured(record, policy_version)]
    return "\n".join([*parts, LOADING.format(name=name)])


def _facts(record: RunRecord, step: int, dtype: str | None) -> Iterator[list[str]]:
    config = record.config
    planned = config.get("run.steps")
    yield ["optimizer steps", f"{step} of {planned} planned" if planned else str(step)]
    for label, key in FACTS.items():
        if config.get(key) not in (None, "", []):
            yield [label, _value(config[key])]
    defaults = dict(leaves(msgspec.to_builtins({"algorithm": Algorithm(), "reward": Reward()})))
    for key, default in defaults.items():
        if key not in FACTS.values() and config.get(key, default) != default:
            yield [key, _value(config[key])]
    if dtype:
        yield ["weights", f"cast to {dtype}"]


def _measured(record: RunRecord, policy_version: int) -> list[str]:
    """The base model's marks beside these weights', as far as either was measured."""
    found = {evaluation.policy_version: evaluation for evaluation in record.held_out() if evaluation.num_prompts}
    columns = [found[v] for v in dict.fromkeys((0, policy_version)) if v in found]
    lines = ["## Held-out prompts", ""]
    if columns:
        head = ["", *("before" if e.policy_version == 0 and policy_version else "these weights" for e in columns)]
        lines += [*_table(head, _marks(columns)), "", _how(record), ""]
    if policy_version not in found:
        lines += [f"Version {policy_version}, which this is, was not measured during the run.", ""]
    return lines if record.config.get("data.held_out") else []


def _marks(columns: list[HeldOut]) -> list[list[str]]:
    rows = [["accuracy, and where it lies 19 times out of 20", *map(_accuracy, columns)]]
    for part in (of_many, sources):
        names = dict.fromkeys(n for column in columns for n in part(column.metrics) if not n.startswith("avg@"))
        rows += [[name, *(_share(part(column.metrics).get(name)) for column in columns)] for name in names]
    rows.append(["prompts", *(str(column.num_prompts) for column in columns)])
    for label, key in (("tokens, mean", "length_mean"), ("cut at the limit", "truncated")):
        show = _share if key == "truncated" else _number
        rows.append([label, *(show(column.metrics.get(key)) for column in columns)])
    return rows


def _how(record: RunRecord) -> str:
    config = record.config
    samples, temperature = config.get("evaluation.samples", 1), config.get("evaluation.temperature", 0.0)
    tokens = config.get("evaluation.max_tokens") or config.get("sampling.max_tokens")
    many = f"{samples} completions" if samples != 1 else "one completion"
    how = f"at temperature {temperature:g}" if temperature else "greedy"
    return f"Of each prompt {many}, {how}, of at most {tokens} tokens."


def _accuracy(evaluation: HeldOut) -> str:
    low, high = interval(evaluation.accuracy, evaluation.num_prompts)
    return f"{evaluation.accuracy:.1%} ({low:.1%} to {high:.1%})"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, str):
        return f"`{value}`".replace("|", "\\|")  # Or a table would take it for the end of a cell.
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
