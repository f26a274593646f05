"""
Words of a launch line that are no options, and the variables of its environment, each with an account.

    HCCL_BUFFSIZE=1  ray job submit --runtime-env=env.yaml --  python3 -m verl.trainer.main_ppo  --config-name=x
    variable         runner, with a file that was not read     program and module                configuration
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from asyncrl.tools.verl.overrides import Account, Fate, is_override
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
ENV_FILE = (
    "its variables are not read: export those of its env_vars where asyncrl is started, as HCCL_* and NCCL_* among them"
)
VERLS_ENV_FILE = "verl/trainer/runtime_env.yaml"
VERLS_VARIABLES = "verl's own has variables for verl's own use of NCCL and of Megatron"


def config_names(line: Line) -> list[str]:
    """Names of Hydra's configurations that a line asks for."""
    pairs = [(flag[0].partition("=")[0], _value(flag)) for flag in line.flags]
    return [PurePosixPath(value).name.removesuffix(".yaml") for name, value in pairs if name in CONFIG_FLAGS[::3]]


def _value(flag: Sequence[str]) -> str:
    return (flag[0].partition("=")[2] if "=" in flag[0] else flag[-1]).strip("'\"")


def of_flags(line: Line) -> Iterator[Account]:
    """Accounts of Hydra's flags: of configurations that are known, of others, and of where they are."""
    names = config_names(line)
    are_known = all(name in CONFIGS for name in names)
    for flag in line.flags:
        text = " ".join(flag)
        if flag[0].partition("=")[0] not in CONFIG_FLAGS[::3]:
            yield _folder(text, is_known=are_known)
            continue
        name = PurePosixPath(_value(flag)).name.removesuffix(".yaml")
        if name not in CONFIGS:
            why = f"the configuration {name!r} was not read: give the options that it sets on the line"
            yield Account(text, "unknown", why)
        elif sets := CONFIGS[name]:
            yield Account(text, "mapped", f"verl's own configuration, which sets {', '.join(sets)}")
        else:
            yield Account(text, "not needed", "verl's own configuration, whose values are the defaults here")


def _folder(text: str, *, is_known: bool) -> Account:
    if is_known:
        return Account(text, "not needed", "it says where verl's own configuration is")
    return Account(text, "unknown", "configurations in it were not read: give the options that they set")


def of_runner(line: Line) -> Iterator[Account]:
    """Accounts of the words before the program, and of those after the module that are no options."""
    words, rest = list(line.runner), []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in ("--runtime-env", "--runtime-env-json"):
            rest.append(word)
            continue
        value = value if equals or not words else words.pop(0)
        text = word if equals else f"{word} {value}"
        if name == "--runtime-env-json":
            yield Account(text, "not needed", "its env_vars are accounted for as variables")
        elif value.endswith(VERLS_ENV_FILE):
            yield Account(text, "not needed", VERLS_VARIABLES)
        else:
            yield Account(text, "unknown", ENV_FILE)
    if rest:
        yield Account(" ".join(rest), "not needed", OWN_PROCESSES)
    for word in line.others:
        yield Account(word, "unknown", "it is no option of Hydra, KEY=VALUE, and has no effect")


def runtime_variables(line: Line) -> dict[str, str]:
    """Variables of ``--runtime-env-json``, and those that the runner sets itself."""
    texts = [word.partition("=")[2] for word in line.runner if word.startswith("--runtime-env-json=")]
    places = [place for place, word in enumerate(line.runner[:-1]) if word == "--runtime-env-json"]
    texts += [line.runner[place + 1] for place in places]
    found: dict[str, str] = dict(line.variables)
    for text in texts:
        try:
            variables = json.loads(text).get("env_vars", {})
        except (ValueError, AttributeError):
            continue
        found |= {str(name): str(value) for name, value in variables.items()}
    return found


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
