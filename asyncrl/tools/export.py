"""
`asyncrl export`: writes the model of a checkpoint as a directory that transformers and vLLM load, or its adapter as
one that PEFT loads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from asyncrl.config.config import leaves
from asyncrl.config.meanings import meaning_of
from asyncrl.config.model.directory import snapshot_of
from asyncrl.config.model.weights import read_config
from asyncrl.config.run_file import PATH_KEYS
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.config.sections.reward import Reward
from asyncrl.config.sections.trainer import Lora
from asyncrl.data.census import shared_sentence
from asyncrl.data.chat_template import read_template
from asyncrl.errors import ConfigError
from asyncrl.files.atomic import refuse_existing
from asyncrl.files.json_lines import toml_key, toml_value
from asyncrl.plug_in import is_path
from asyncrl.records.evaluation_metrics import accuracy_by_source, graded_reward, multi_sample_metrics
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import EvaluationEvent, RunRecord, read_run
from asyncrl.runtime.model_files import snapshot_name
from asyncrl.runtime.process import configure_logging
from asyncrl.tools.report.charts import interval
from asyncrl.version import VERSION
from asyncrl.vision.settings import FAMILIES

if TYPE_CHECKING:  # torch is imported after options and files are checked
    from asyncrl.trainer.checkpoints.export import Dtype


def export_run(
    path: Path,
    out: Path,
    *,
    step: str | None = None,
    dtype: "Dtype | None" = None,
    is_adapter: bool = False,
    push_to: str = "",
    is_private: bool = False,
) -> str:
    """
    Write the model of one checkpoint of a run to ``out``, and return a one-line summary.

    Args:
        step: A number of optimizer steps, or ``best``; None takes the newest intact checkpoint.
        dtype: Dtype that weights are cast to; None keeps the trained one.
        is_adapter: Write the adapter alone, for PEFT.
        push_to: Model of the Hub, ``OWNER/NAME``, to upload the directory to; empty uploads nothing.
        is_private: Make that model for its owner's eyes, if it does not exist.

    Raises `ConfigError` if run, checkpoint or adapter do not exist, ``out`` does, or the Hub refuses, `LedgerError` if
    the checkpoint is damaged, and `RunFailed` if the disk refuses a write.
    """
    configure_logging("export")
    refuse_existing(out)  # before gigabytes are read
    record, name = read_run(path), out.resolve().name
    lora = _lora(record, path) if is_adapter else Lora()
    base, revision = _base(record) if is_adapter else ("", None)
    wanted = _step(step)
    hub = HubModel(push_to, is_private=is_private) if push_to else None
    from asyncrl.trainer.checkpoints.export import export, export_adapter, find_checkpoint

    folder, manifest = find_checkpoint(RunDirectory(path).checkpoints, wanted)
    card = model_card(
        record,
        name,
        step=manifest.step,
        policy_version=manifest.policy_version,
        dtype=dtype,
        reads_pictures=read_config(folder).get("model_type") in FAMILIES,
        adapter_of=base,
        path=str(out),
        has_template=bool(read_template(folder)),
        is_best=wanted == "best",
    )
    if is_adapter:
        export_adapter(folder, manifest, out, lora=lora, base=base, revision=revision, card=card, dtype=dtype)
    else:
        export(folder, manifest, out, card=card, settings=settings_text(record), dtype=dtype)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    what = f"step {manifest.step} of {record.name}"
    pushed = f", and at {hub.upload(out, what)}" if hub else ""
    return f"{out}: {what}, {size / 1e6:,.1f} MB{pushed}"


def _lora(record: RunRecord, path: Path) -> Lora:
    """Adapters of the run; raises `ConfigError` if it had none."""
    config = record.config
    if "model.path" not in config:
        raise ConfigError(
            f"{path} has no readable config.toml, which has the scale of the adapter and its base model; export on the "
            f"broker's machine, or copy the file from there"
        )
    if not (lora := _lora_of(config)).rank:
        raise ConfigError(f"{path} trained the model itself (trainer.lora.rank = 0); export it without --adapter")
    return lora


def _lora_of(config: Mapping[str, Any]) -> Lora:
    plain = Lora()
    rank, alpha = (config.get(f"trainer.lora.{name}", getattr(plain, name)) for name in ("rank", "alpha"))
    return Lora(rank=rank, alpha=alpha)


def _base(record: RunRecord) -> tuple[str, str | None]:
    """Name and commit of the base model on the Hugging Face Hub, or its path."""
    path: str = record.config["model.path"]
    name = snapshot_name(path)
    return (name.repo, name.revision) if name else (path, None)


class HubModel:
    """A model of the Hugging Face Hub, made at once if it does not exist; raises `ConfigError` if the Hub refuses."""

    def __init__(self, name: str, *, is_private: bool = False) -> None:
        from huggingface_hub import HfApi

        self._name = name
        self._api = HfApi()
        with self._refusals("nothing was exported"):  # Before gigabytes are read.
            self._url = str(self._api.create_repo(name, private=is_private or None, exist_ok=True))

    def upload(self, folder: Path, message: str) -> str:
        """Upload a directory as one commit, and return the address of the model."""
        with self._refusals(f"the export is in {folder}"):
            self._api.upload_folder(repo_id=self._name, folder_path=folder, commit_message=message)
        return self._url

    @contextmanager
    def _refusals(self, state: str) -> Iterator[None]:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except (OSError, ValueError, HfHubHTTPError) as error:
            why = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--push {self._name}: the Hub does not take it ({why}); {state}; `hf auth login` logs in with a token "
                f"that may write"
            ) from error


def _step(text: str | None) -> int | Literal["best"] | None:
    if text is None:
        return None
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise ConfigError(f"--step {text!r}: expected a number of optimizer steps, or 'best'")
    return int(text)


# ── settings ──────────────────────────────────────────────────────────────────────────────────

OF_EVALUATIONS = ("data.", "evaluation.", "sampling.", "reward.")


def settings_text(record: RunRecord) -> str:
    """
    Settings by which prompts were made and completions judged, as a run file without data for `asyncrl eval`; none of
    the machine's paths is in it.

    Empty for a run with an environment, which is a program: its `config.toml` is the run file then.
    """
    config = record.config | record.live_settings
    if "data.train" not in config or config.get("environment.function"):
        return ""
    found = {key: value for key, value in config.items() if key.startswith(OF_EVALUATIONS) and _is_portable(key, value)}
    lines = [f"{'.'.join(map(toml_key, key.split('.')))} = {toml_value(value)}" for key, value in found.items()]
    own = _own_reward(record)
    given = f"; its reward is one's own: give{own}" if own else ""
    return "\n".join([f"# How the run {record.name!r} asked this model, for `asyncrl eval`{given}.", *lines, ""])


def _is_portable(key: str, value: Any) -> bool:
    """True unless it is the default, or names a file."""
    known = meaning_of(key)
    is_default = known is not None and not known.is_required and value == msgspec.to_builtins(known.default)
    names_file = key.rpartition(".")[2] in PATH_KEYS or ".py:" in str(value)
    return not is_default and not names_file


# ── model card ─────────────────────────────────────────────────────────────────────────────────
# README.md of an exported model, from its run's files; missing facts are left out, and no licence is guessed.
#
# Models and data have their names on the Hugging Face Hub, or those of their files: a path tells of the machine. Only
# the commands that load an adapter have the paths, as its adapter_config.json has that of the base model: both may
# have one name.

HEADER = """\
---
library_name: transformers
{base}pipeline_tag: {task}
tags:
- reinforcement-learning
- asyncrl
---
"""
ADAPTER_HEADER = """\
---
library_name: peft
{base}pipeline_tag: {task}
tags:
- reinforcement-learning
- asyncrl
- lora
---
"""

SETTINGS = {
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
    "steps of warm-up": "trainer.warmup_steps",
    "seed": "run.seed",
    "training data": "data.train",
    "held-out data": "data.held_out",
    "prompts held out of the training data": "data.hold_out",
}
"""Row label to config key."""

USAGE = """\
## Use

```python
from transformers import {model}, {reader}

{reader_name} = {reader}.from_pretrained("{path}")
model = {model}.from_pretrained("{path}")
{ask}```

or `vllm serve {path}`{measured}.
"""
ADAPTER_USAGE = """\
## Use

```python
from peft import PeftModel
from transformers import {model}, {reader}

{reader_name} = {reader}.from_pretrained("{path}")
model = PeftModel.from_pretrained({model}.from_pretrained("{base_path}"), "{path}")
{ask}```

`asyncrl export RUN -o DIR`, without `--adapter`, writes the merged model, which vLLM serves and `asyncrl eval`
evaluates.
"""
CHAT = """\
chat = [{"role": "user", "content": "..."}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"%s)
"""
PLAIN = """\
inputs = tokenizer("...", return_tensors="pt")
"""
GENERATE = """\
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=%s)[0]))
"""


BEST_OF = (
    "These weights were chosen as the best of {number} evaluations on these prompts: expect a little less on others."
)

TEXT = {
    "task": "text-generation",
    "model": "AutoModelForCausalLM",
    "reader": "AutoTokenizer",
    "reader_name": "tokenizer",
}
PICTURES = {
    "task": "image-text-to-text",
    "model": "AutoModelForImageTextToText",
    "reader": "AutoProcessor",
    "reader_name": "processor",
}


def model_card(
    record: RunRecord,
    name: str,
    *,
    step: int,
    policy_version: int,
    dtype: str | None,
    reads_pictures: bool = False,
    adapter_of: str = "",
    path: str = "",
    has_template: bool = False,
    is_best: bool = False,
) -> str:
    """
    The card of checkpoint ``step``, exported as ``name``.

    Args:
        dtype: Dtype cast to; None for the trained one.
        adapter_of: Name or path of the base model, if the adapter alone is exported.
        path: Folder of the export, as it was given; empty takes its name.
        has_template: The tokenizer has a chat template.
        is_best: The checkpoint was chosen by its evaluation.
    """
    words = PICTURES if reads_pictures else TEXT
    header, usage = (ADAPTER_HEADER, ADAPTER_USAGE) if adapter_of else (HEADER, USAGE)
    path_of_base = record.config.get("model.path", "a language model")
    on_hub = snapshot_of(path_of_base)
    about = (
        f"{'A LoRA adapter of ' if adapter_of else ''}{_base_model(path_of_base)} after {step} optimizer steps of "
        f"asynchronous reinforcement learning: "
        f"run `{record.name}`, policy version {policy_version}. Exported by asyncrl {VERSION}."
    )
    training = _table(["setting", "value"], [*_settings(record, step, dtype)])
    parts = [
        header.format(base=f'base_model: "{on_hub.repo}"\n' if on_hub else "", **words),
        f"# {name}",
        "",
        about,
        "",
        "## Training",
        "",
        *training,
        "",
        *_results(record, policy_version, is_best=is_best),
    ]
    ask = "" if reads_pictures else _ask(record, policy_version, has_template=has_template)
    path = path or name
    command = f"asyncrl eval {path} --data FILE{_own_reward(record)}"
    measured = f"; `{command}` evaluates it as its run did" if settings_text(record) else ""
    return "\n".join([*parts, usage.format(base_path=adapter_of, path=path, ask=ask, measured=measured, **words)])


def _own_reward(record: RunRecord) -> str:
    """Option that names the run's own reward function, which is in no export; empty for a built-in one."""
    function = record.config.get("reward.function", "")
    return f" --reward {_name(function)}" if is_path(function) else ""


def _ask(record: RunRecord, policy_version: int, *, has_template: bool) -> str:
    """Lines of Python that ask the model one prompt as the run did."""
    options = {key: value for key, value in record.config.items() if key.startswith("data.chat_template_kwargs.")}
    given = "".join(f", {key.rpartition('.')[2]}={value!r}" for key, value in options.items())
    return (CHAT % given if has_template else PLAIN) + GENERATE % (_limit(record, policy_version) or 128)


def _settings(record: RunRecord, step: int, dtype: str | None) -> Iterator[list[str]]:
    config = record.config
    planned = config.get("run.steps")
    goal = f"; ended by run.stop_when = '{record.summary.goal}'" if record.summary and record.summary.goal else ""
    yield ["optimizer steps", f"{step} of {planned} planned{goal}" if planned else str(step)]

    def history(key: str, first: object) -> str:
        return record.history(key, _value(first), _value, steps=step)

    for label, key in SETTINGS.items():
        if config.get(key) not in (None, "", []):
            is_base = key == "model.path"
            yield [label, _base_model(config[key]) if is_base else history(key, config[key])]
    sections = {"algorithm": Algorithm(), "reward": Reward(), "trainer": {"lora": Lora()}}
    defaults = dict(leaves(msgspec.to_builtins(sections)))
    if (lora := _lora_of(config)).rank:
        config = config | {"trainer.lora.alpha": lora.effective_alpha}
    for key, default in defaults.items():
        told = history(key, config.get(key, default))
        if key not in SETTINGS.values() and told != _value(default):
            yield [key, told]
    if dtype:
        yield ["weights", f"cast to {dtype}"]


def _results(record: RunRecord, policy_version: int, *, is_best: bool) -> list[str]:
    """The evaluations of the base model and of these weights side by side, as far as they exist."""
    found = {evaluation.policy_version: evaluation for evaluation in record.evaluations()}
    columns = [found[v] for v in dict.fromkeys((0, policy_version)) if v in found]
    lines = ["## Held-out prompts", ""]
    if columns:
        head = ["", *("before" if e.policy_version == 0 and policy_version else "these weights" for e in columns)]
        lines += [*_table(head, _metric_rows(columns, _limit(record))), "", _protocol(record, columns), ""]
        if is_best and len(found) > 1:
            lines += [BEST_OF.format(number=len(found)), ""]
        if any(shared := record.shared_prompts()):
            lines += [f"{shared_sentence(*shared)}: of these the accuracy is not that of unseen prompts.", ""]
    if policy_version not in found:
        lines += [f"The run did not evaluate version {policy_version}, which this model is.", ""]
    return lines if record.config.get("data.held_out") or record.config.get("data.hold_out") else []


def _metric_rows(columns: list[EvaluationEvent], limit: int | None) -> list[list[str]]:
    rows = [["accuracy (95 % confidence interval)", *map(_accuracy, columns)]]
    for select in (multi_sample_metrics, accuracy_by_source):
        names = dict.fromkeys(n for column in columns for n in select(column.metrics) if not n.startswith("avg@"))
        rows += [[name, *(_cell(select(column.metrics).get(name)) for column in columns)] for name in names]
    if any(graded_reward(column.accuracy, column.reward) is not None for column in columns):
        rows.append(["reward, mean", *(_cell(column.reward, ".3g") for column in columns)])
    rows.append(["prompts", *(str(column.num_prompts) for column in columns)])
    if any(column.metrics.get("failed") for column in columns):
        rows.append(["failed, in no mean", *(_cell(column.metrics.get("failed"), ".0f") for column in columns)])
    rows.append(["tokens, mean", *(_cell(column.metrics.get("length_mean"), ".1f") for column in columns)])
    rows.append(["ended at the limit, right or not", *(_cell(column.metrics.get("truncated")) for column in columns)])
    if any(column.max_tokens not in (0, limit) for column in columns):
        rows.append(["limit in tokens, set while the run went on", *(str(c.max_tokens or limit) for c in columns)])
    return rows


def _protocol(record: RunRecord, columns: list[EvaluationEvent]) -> str:
    config, limits = record.config, {column.max_tokens or _limit(record) for column in columns}
    samples, temperature = config.get("evaluation.samples", 1), config.get("evaluation.temperature", 0.0)
    many = f"{samples} completions" if samples != 1 else "one completion"
    decoding = f"at temperature {temperature:g}" if temperature else "greedy"
    most = f"of at most {limits.pop()} tokens" if len(limits) == 1 else "of at most as many tokens as the table says"
    return f"For each prompt {many}, {decoding}, {most}."


def _limit(record: RunRecord, policy_version: int = 0) -> int | None:
    """Longest completion of an evaluation, in tokens: of a version, or as the run was started."""
    of_version = (
        one.max_tokens for one in record.evaluations() if policy_version and one.policy_version == policy_version
    )
    first = record.config.get("evaluation.max_tokens") or record.config.get("sampling.max_tokens")
    return next(of_version, 0) or first


def _accuracy(evaluation: EvaluationEvent) -> str:
    low, high = interval(evaluation.accuracy, evaluation.num_prompts)
    return f"{evaluation.accuracy:.1%} ({low:.1%} to {high:.1%})"


def _cell(value: float | None, form: str = ".1%") -> str:
    return "" if value is None else format(value, form)


def _base_model(path: str) -> str:
    is_local = path.startswith("/") and not snapshot_of(path)
    return f"{_value(path)}{' (a local folder)' if is_local else ''}"


def _name(path: str) -> str:
    if found := snapshot_of(path):
        return f"{found.repo}/{found.file}".rstrip("/")
    return PurePath(path).name if path.startswith("/") else path


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key} = {_value(one)}" for key, one in value.items())
    if isinstance(value, str):
        return f"`{_name(value)}`".replace("|", "\\|")  # An unescaped | would end the table cell.
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
