"""
Words of a launch line that are no options, and the variables of its environment, each with an account.

    HCCL_BUFFSIZE=1  ray job submit --runtime-env=env.yaml --  python3 -m verl.trainer.main_ppo  --config-name=x
    variable         runner, with a file that was not read     program and module                configuration
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.tools.verl.named_files import configuration, find, variables_of
from asyncrl.tools.verl.overrides import Account, Fate, Override, is_override, parse_override, parse_value
from asyncrl.tools.verl.trainers import CONFIGS, OTHER_PROGRAMS

# ── line ──────────────────────────────────────────────────────────────────────────────────────

PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
CONFIG_FLAGS = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")


class Line(Struct, frozen=True):
    """Words of a command that runs a module or a file of Python, by their part."""

    runner: list[str]
    """Words before the program, such as those of ``ray job submit``, without assignments of variables."""
    variables: dict[str, str]
    """Variables that the runner sets, such as those of ``env A=1``."""
    program: list[str]
    """Python with its flags, and the module or file."""
    module: str
    """Module, or the file as a module."""
    flags: list[list[str]]
    """Hydra's flags, each with its value."""
    options: list[str]
    """Overrides."""
    others: list[str]
    """Words after the module that are neither."""


def parse_line(command: Sequence[str]) -> Line | None:
    """Divide a command into its parts; None if it runs no module or file of Python."""
    place = next((place for place, word in enumerate(command) if _is_module(command, place)), None)
    if place is None:
        return None
    starts = [start for start in range(place) if PROGRAM.fullmatch(command[start])]
    start = starts[-1] if starts else place
    before = command[:start]
    variables = dict(word.split("=", 1) for word in before if ASSIGNMENT.fullmatch(word))
    flags, options, others = _divided(command[place + 1 :])
    module = command[place].removesuffix(".py").lstrip("./").replace("/", ".")
    return Line(
        runner=[word for word in before if not ASSIGNMENT.fullmatch(word)],
        variables=variables,
        program=list(command[start : place + 1]),
        module=module,
        flags=flags,
        options=options,
        others=others,
    )


def _is_module(command: Sequence[str], place: int) -> bool:
    if place == 0:
        return False
    is_file = command[place].endswith(".py") and bool(re.fullmatch(r"[\w./-]+", command[place]))
    return is_file or (command[place - 1] == "-m" and bool(re.fullmatch(r"[\w.]+", command[place])))


def _divided(words: Sequence[str]) -> tuple[list[list[str]], list[str], list[str]]:
    """Flags of Hydra with their values, overrides, and all other words."""
    flags: list[list[str]] = []
    options: list[str] = []
    others: list[str] = []
    left = iter(words)
    for word in left:
        if word.partition("=")[0] in CONFIG_FLAGS:
            flags.append([word] if "=" in word else [word, *(value for value in [next(left, None)] if value)])
        elif is_override(word):
            options.append(word)
        else:
            others.append(word)
    return flags, options, others


# ── accounts ──────────────────────────────────────────────────────────────────────────────────

OWN_PROCESSES = "there is no Ray: asyncrl runs its own processes"
UNREAD = "it is not here, and was not read"
ENV_FLAGS, JSON = ("--runtime-env", "--env-file"), "--runtime-env-json"
"""Flags of runners whose value is a file with variables, and the one whose value has them."""


def config_names(line: Line) -> list[str]:
    """Names of Hydra's configurations that a line asks for."""
    pairs = [(flag[0].partition("=")[0], _value(flag)) for flag in line.flags]
    return [PurePosixPath(value).name.removesuffix(".yaml") for name, value in pairs if name in CONFIG_FLAGS[::3]]


def _value(flag: Sequence[str]) -> str:
    return (flag[0].partition("=")[2] if "=" in flag[0] else flag[-1]).strip("'\"")


def config_files(line: Line, folders: Sequence[Path]) -> dict[str, Path]:
    """Configurations of a line that are here, in the folder that the line gives, by their names."""
    given = [_value(flag) for flag in line.flags if flag[0].partition("=")[0] not in CONFIG_FLAGS[::3]]
    found = {name: find(f"{folder}/{name}.yaml", folders) for name in config_names(line) for folder in given}
    return {name: path for name, path in found.items() if path}


def configured(name: str, path: Path | None, above: Sequence[str] = ()) -> list[Override]:
    """
    Options that a configuration sets: those of its file, after those of its bases, else verl's own of this name.

    ``above`` are configurations that are based on this one. Raises `ConfigError` if a file is no configuration.
    """
    if path is None or name in above:
        return [replace(parse_override(option), source=name) for option in CONFIGS.get(name, ())]
    read = configuration(path)
    bases = [(base, find(f"{base}.yaml", [path.parent])) for base in read.bases]
    own = [
        Override(key, parse_value(value) if isinstance(value, str) else value, f"{key}={value}", source=name)
        for key, value in read.options.items()
    ]
    return [option for base in bases for option in configured(*base, (*above, name))] + own


def of_flags(line: Line, folders: Sequence[Path] = ()) -> Iterator[Account]:
    """Accounts of Hydra's flags: of configurations that are here, of verl's own, and of others."""
    names, files = config_names(line), config_files(line, folders)
    has_folder = len(line.flags) > len(names)
    for flag in line.flags:
        text, value = " ".join(flag), _value(flag)
        if flag[0].partition("=")[0] not in CONFIG_FLAGS[::3]:
            yield _folder(text, are_read=len(files) == len(names))
            continue
        name = PurePosixPath(value).name.removesuffix(".yaml")
        sets = f"sets {', '.join(CONFIGS[name])}" if CONFIGS.get(name) else "has the defaults here"
        if name in files:
            yield _of_file(text, files[name])
        elif name not in CONFIGS:
            yield Account(text, "unknown", f"the configuration {name!r} was not read: give the options that it sets")
        elif has_folder:
            yield Account(text, "unknown", f"{UNREAD}: taken for verl's own of this name, which {sets}")
        else:
            yield Account(text, "mapped" if CONFIGS[name] else "not needed", f"verl's own configuration, which {sets}")


def _of_file(text: str, path: Path) -> Account:
    bases = configuration(path).bases
    others = [base for base in bases if base not in CONFIGS and not find(f"{base}.yaml", [path.parent])]
    if others:
        return Account(text, "unknown", f"{path} was read, and {', '.join(others)}, on which it is based, is not here")
    return Account(text, "mapped", f"{path} was read; its options have accounts of their own")


def _folder(text: str, *, are_read: bool) -> Account:
    if are_read:
        return Account(text, "not needed", "it says where the configuration is")
    return Account(
        text, "unknown", f"{UNREAD}: give the options that its configurations set, if they are not verl's own"
    )


def of_runner(line: Line, folders: Sequence[Path] = ()) -> Iterator[Account]:
    """Accounts of the words before the program, and of those after the module that are no options."""
    rest: list[str] = []
    for name, value, text in _runner(line):
        if name == JSON and _of_json(value) is None:
            yield Account(text, "unknown", "it is no JSON with env_vars, and was not read")
        elif name == JSON:
            yield Account(text, "not needed", "its env_vars are accounted for as variables")
        elif name not in ENV_FLAGS:
            rest.append(text)
        elif path := find(value, folders):
            yield Account(text, "not needed", f"{path} was read: its variables have accounts of their own")
        else:
            yield Account(text, "unknown", f"{UNREAD}: export its variables where asyncrl is started")
    if rest:
        yield Account(" ".join(rest), "not needed", OWN_PROCESSES)
    for word in line.others:
        yield Account(word, "unknown", "it is no option of Hydra, KEY=VALUE, and has no effect")


def _runner(line: Line) -> Iterator[tuple[str, str, str]]:
    """Words of the runner, each as its name, its value, and its text; only flags with variables have a value."""
    words = iter(line.runner)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in (*ENV_FLAGS, JSON):
            yield word, "", word
        elif equals:
            yield name, value, word
        else:
            value = next(words, "")
            yield name, value, f"{word} {value}".strip()


def runtime_variables(line: Line, folders: Sequence[Path] = ()) -> dict[str, str]:
    """Variables that the runner sets: itself, in its JSON, and in files here. Raises `ConfigError` for a wrong file."""
    found: dict[str, str] = dict(line.variables)
    for name, value, _ in _runner(line):
        if name == JSON:
            found |= _of_json(value) or {}
        elif name in ENV_FLAGS and (path := find(value, folders)):
            found |= variables_of(path)
    return found


def _of_json(text: str) -> dict[str, str] | None:
    """Variables of Ray's environment; None for any other text."""
    try:
        return {str(name): str(value) for name, value in json.loads(text).get("env_vars", {}).items()}
    except (ValueError, AttributeError):
        return None


# ── environment ───────────────────────────────────────────────────────────────────────────────

EXPORTED = "start asyncrl with it: its processes inherit the environment; the head of the file has it"
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD")
VARIABLES: Sequence[tuple[str, Fate, str]] = (
    (r"HYDRA_\w+", "not needed", "there is no Hydra"),
    (r"RAY_\w+", "not needed", OWN_PROCESSES),
    (r"VERL_\w+|LOGGING_LEVEL", "not needed", "verl itself reads it; asyncrl's logs are in the run directory"),
    (r"(SGLANG|SGL|TRTLLM|TLLM)_\w+", "not needed", "another engine than vLLM reads it"),
    (r"NVTE_\w+", "not needed", "Megatron's Transformer Engine reads it, and FSDP2 trains here"),
    (r"VLLM_USE_V1", "not needed", "vLLM has its V1 engine alone in the releases that asyncrl supports"),
    (r"MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)", "not needed", "asyncrl gives each rank its place"),
    (r"PYTHON(PATH|UNBUFFERED|HASHSEED|DONTWRITEBYTECODE)|RUST_BACKTRACE", "mapped", EXPORTED),
    (r"(HF|TRANSFORMERS|TOKENIZERS|WANDB|MLFLOW|SWANLAB|TENSORBOARD|CLEARML|VLLM|CUDA|CUBLAS)_\w+", "mapped", EXPORTED),
    (r"(NCCL|HCCL|GLOO|TP|UCX|ASCEND|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|ATB|LCCL|OMP|MKL|LD)_\w+", "mapped", EXPORTED),
    (r"TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|MAX_JOBS|USE_OPTIMIZED_MODEL|MULTI_STREAM_MEMORY_REUSE", "mapped", EXPORTED),
    (r"(?i:https?_proxy|no_proxy|all_proxy)", "mapped", EXPORTED),
)
"""Fate and reason by a pattern of the variable's name; the first entry that matches decides."""
ASCEND = re.compile(r"(HCCL|ASCEND|VLLM_ASCEND)_\w+|TASK_QUEUE_ENABLE|PYTORCH_NPU_ALLOC_CONF")
"""Variables that only Ascend NPUs have a use for."""


def of_variables(variables: Mapping[str, str], script: str) -> Iterator[Account]:
    """
    Accounts of the variables that the training command has from its script.

    Args:
        script: Text of the script, which may read a variable itself.
    """
    for name, value in sorted(variables.items()):
        text = f"{name}=..." if SECRET.search(name) else f"{name}={value}"
        for pattern, fate, why in VARIABLES:
            if re.fullmatch(pattern, name):
                yield Account(text, fate, why)
                break
        else:
            if re.search(rf"\$\{{?{name}\b", script):
                yield Account(text, "not needed", "the script itself reads it, and its options have what it made of it")
            else:
                why = "it is in no table of variables here; if your own code reads it, start asyncrl with it"
                yield Account(text, "unknown", why)


def is_other_program(module: str) -> bool:
    """True if a module of verl does not train by reinforcement, as its fine-tuning and evaluations."""
    return bool(OTHER_PROGRAMS.fullmatch(module))
