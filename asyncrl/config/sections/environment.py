"""
Settings of episodes.

    one of function, tools, command         what answers the policy
    none of them                            nothing else of the section is read
"""

from typing import Annotated, Literal, get_args

from msgspec import Meta, field

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.config.sections.section import Count, Limit, Natural, Positive, Section
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import MAX_SEATS
from asyncrl.messages.words import Unenforced
from asyncrl.plug_in import hint, is_path

SOURCES = ("function", "tools", "command")
TOOLS = ("calculator", "python", "python_unconfined", "shell")
"""Tools by name; the others are ``file.py:name`` and ``mcp:COMMAND``."""
ROW = "row"
"""Image of a container that each row chooses."""


class ContainerSettings(Section, frozen=True, kw_only=True):
    """A container for each episode, on the machine of its rollout; none without ``image``."""

    image: str = ""
    """
    Image of the containers; a missing one is pulled before the first episode. ``row`` takes what each row names in
    ``extra``: ``container_image``, or ``container_build``, a folder with a Dockerfile, which is built once.
    """
    runtime: str = "auto"
    """
    ``docker``, ``podman``, or the first of these that answers (``auto``); the path of a program with podman's command
    line; or ``file.py:name``, a class with the methods of `asyncrl.workers.containers.Containers`.
    """
    cpus: Positive = 1.0
    """Cores of one container."""
    memory_bytes: Count = 2 << 30
    """Memory of one container."""
    pids: Count = 512
    """Processes and threads of one container."""
    network: str = "none"
    """Network of the containers: ``none``, ``bridge``, or the name of one that exists."""
    mounts: list[str] = []
    """Folders of this machine, as ``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``. Snapshots do not contain them."""
    workdir: str = ""
    """Folder in the container in which programs start; empty: that of the image."""
    command: list[str] = field(default_factory=lambda: ["sleep", "infinity"])
    """Program that keeps a container alive, in place of the image's own."""
    arguments: list[str] = []
    """Further arguments of ``docker run`` or ``podman run``, such as ``--gpus=all``."""
    warm: Natural = 0
    """Containers of ``image`` that are kept ready, so that an episode need not wait for one."""
    snapshot: Literal["none", "turn"] = "none"
    """
    ``turn`` saves the files of the container after each turn, as an image of this machine, from which a lost episode is
    continued here. It needs an environment that is continued from snapshots.
    """

    @property
    def is_set(self) -> bool:
        """True if episodes have containers."""
        return bool(self.image)

    def check(self) -> None:
        """Raise `ConfigError` for the first contradiction between settings of the section."""
        if not self.image and self != ContainerSettings():
            raise ConfigError("environment.container is only read with environment.container.image; set it")
        if not self.command or not self.command[0]:
            raise ConfigError("environment.container.command is empty, expected a program that keeps a container alive")
        if self.image == ROW and self.warm:
            raise ConfigError(
                "environment.container.warm keeps containers of one image ready, but image = 'row' has one for each "
                "row; remove one of them"
            )
        for place, mount in enumerate(self.mounts):
            source, _, target = mount.partition(":")
            if not source.startswith("/") or not target.startswith("/"):
                raise ConfigError(
                    f"environment.container.mounts[{place}] is {mount!r}, expected /SOURCE:/TARGET or "
                    f"/SOURCE:/TARGET:ro"
                )


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
    same where the kernel gives no walls), ``shell`` (in the container of the episode), ``file.py:name``, or
    ``mcp:COMMAND ...`` for all tools of an MCP server.
    """
    command: list[str] = []
    """Agent program, run once for each episode with ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` in its environment."""
    gateway: str = "tcp://127.0.0.1:0"
    """
    Address on which a rollout listens for its agent programs; port 0 takes a free one. Other machines, and containers,
    reach it only if another host is given, which must be an address of this machine; the traffic is not encrypted.
    """
    gateway_ignores: list[str] = []
    """
    Fields of requests that are ignored, by name in a header, where they would otherwise be refused because nobody here
    can do what they ask for: ``tools`` (those that only a provider's servers run), ``logit_bias`` and others that a
    refusal names.
    """
    gateway_refuses: list[Unenforced] = []
    """
    Fields of requests that are refused, where they would otherwise be answered though nothing enforces them:
    ``response_format`` (that of the other dialects, too), ``tool_choice`` (a forced tool), ``parallel_tool_calls``,
    ``strict``, ``prefill``, ``structured_outputs``, ``guided_json`` and its like. A program that asks for one of them
    only after a bad reply then fails for what the policy wrote, and its bad episodes are never trained.
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
    seats: Count = 1
    """
    Seats of the policy in one episode, such as the two sides of a game, each with a context, a reward and a baseline of
    its own.
    """
    max_malformed_calls: Limit = 0
    """
    Malformed calls of tools after which an episode ends, with finish reason ``length``; 0: no limit. They are those
    that cannot be read, name no tool, or have arguments that do not fit.
    """
    observation_tokens: Limit = 0
    """
    Most tokens of one message that answers a turn, such as a tool's; 0: a quarter of ``max_tokens``. A longer one is
    cut, and says how much is left out. What begins a context (``reset``, ``restart``) is whole, and so is what agent
    programs say.
    """
    observation_cut: Literal["left", "middle", "right"] = "middle"
    """Part that a longer message loses: its beginning, its middle, or its end."""
    pictures: Limit = 64
    """Most distinct pictures that the environment, or an agent program, shows in one episode; 0: none."""
    picture_bytes: Annotated[int, Meta(ge=1, le=24 << 20)] = 16 << 20
    """Bytes of the files of these pictures together: they are stored with the episode, each once."""
    tool_parser: ToolParser = "auto"
    """
    Form in which the policy writes calls of tools. ``auto`` takes the tokenizer's ``response_template`` if it has one,
    otherwise the form that its chat template shows. ``plain`` is for templates without tools: they are described in the
    system message or the first one of the user, calls have the form ``hermes``, and the user tells their results.
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
    container: ContainerSettings = ContainerSettings()

    @property
    def is_set(self) -> bool:
        """True if trajectories are episodes."""
        return bool(self.function or self.tools or self.command)

    @property
    def most_observed(self) -> int:
        """Most tokens of one message that answers a turn."""
        return self.observation_tokens or max(self.max_tokens // 4, 1)

    def check(self) -> None:
        """Raise `ConfigError` unless one thing answers the policy, or nothing of the section is set."""
        if self.is_set:
            self._check_source()
            self._check_gateway()
            self._check_tools()
            self._check_seats()
            self._check_container()
            return
        plain = Environment()
        for key in self.__struct_fields__:
            if getattr(self, key) != getattr(plain, key):
                raise ConfigError(
                    f"environment.{key} is only read with environment.function, tools or command, and none is set; set "
                    f"one, or remove it"
                )

    def _check_source(self) -> None:
        given = [key for key in SOURCES if getattr(self, key)]
        if len(given) > 1:
            raise ConfigError(
                f"environment.{given[0]} and environment.{given[1]} are both set, but one of them answers the policy; "
                f"remove one"
            )
        if self.function and not is_path(self.function):
            raise ConfigError(
                f"environment.function is {self.function!r}, expected path/to/file.py:name or package.module:name"
            )
        if self.command and not self.command[0]:
            raise ConfigError("environment.command begins with an empty text, expected a program and its arguments")
        if self.options and not self.function:
            raise ConfigError(
                "environment.options are arguments of environment.function, which is not set; remove them"
            )

    def _check_gateway(self) -> None:
        for name in self.gateway_ignores:
            if name in get_args(Unenforced):
                raise ConfigError(
                    f"environment.gateway_ignores names {name!r}, which is answered without it; remove it, or put it "
                    f"into environment.gateway_refuses"
                )

    def _check_tools(self) -> None:
        tools = self.tools
        for place, tool in enumerate(tools):
            if not is_path(tool) and tool not in TOOLS:
                raise ConfigError(
                    f"environment.tools[{place}] is {tool!r}: {hint(tool, TOOLS)} (or path/to/file.py:name, or "
                    f"mcp:COMMAND)"
                )
            if tool in tools[:place]:
                raise ConfigError(f"environment.tools names {tool!r} twice; remove one")
        if tools and self.tool_parser == "none":
            raise ConfigError(
                "environment.tool_parser='none' reads no calls, so environment.tools are never called; use 'auto'"
            )

    def _check_seats(self) -> None:
        if self.seats > MAX_SEATS:
            raise ConfigError(f"environment.seats is {self.seats}, expected at most {MAX_SEATS}")
        if self.seats > 1 and self.tools:
            raise ConfigError(
                f"environment.seats is {self.seats}, but environment.tools answer whoever called them; use "
                f"environment.function, or remove seats"
            )

    def _check_container(self) -> None:
        container = self.container
        container.check()
        if "shell" in self.tools and not container.is_set:
            raise ConfigError(
                "environment.tools names 'shell', which runs in the container of the episode, and there is none; set "
                "environment.container.image, or use 'python', which has a sandbox of its own"
            )
        if self.command and container.snapshot != "none":
            raise ConfigError(
                "environment.container.snapshot saves containers between turns, but environment.command is a program "
                "that runs again from its beginning; use 'none'"
            )
