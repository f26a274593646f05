"""Terminal output of a run: one line per step and event, with a progress bar if the console is a terminal."""

from collections.abc import Iterable, Mapping

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from asyncrl.foreign_text import shown
from asyncrl.messages.supervisor import Evaluated, Paused, Returned, SettingsChanged
from asyncrl.messages.supervisor import Progress as Step
from asyncrl.records.evaluation_metrics import failed_note, multi_sample_metrics
from asyncrl.records.failure_sentences import sentences
from asyncrl.terminal import say

LEGEND = """\
columns: v policy version, reward and acc accuracy of the batch as it was sampled, loss
         of the policy (it need not fall), grad norm of the gradient, len mean tokens,
         stale mean/max staleness in versions, kl from the policy that sampled; of the
         last 10 steps: tok/s trained tokens per second, wait t/r share of time that
         trainer/rollouts waited; eta time left"""
"""Explains the abbreviations of `step_line`; printed before the first step."""
LEGEND_OF_TURNS = "         turns mean turns of an episode"
"""Further line for episodes."""


class Bar(Progress):
    """A progress bar with a line of failures under it."""

    failed = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.failed:
            yield Text(shown(self.failed), style="yellow", no_wrap=True, overflow="ellipsis")


class Screen:
    """Prints the progress of a run; ``steps`` is its total number of steps."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._first: tuple[int, float] | None = None
        """Number of the first step seen, and its time in seconds since the run's start."""
        self._bar = Bar(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("elapsed {task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._is_paused = False
        self._printed = 0
        """Number of failures in the last line about them."""
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> "Screen":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        say(self._console, text)

    def waiting(self, what: str, waited_s: float) -> None:
        self.say(f"waiting for {what}: {waited_s:.0f} s so far")

    def step(self, step: Step) -> None:
        if self._first is None:
            self.say(LEGEND)
            if "turns_mean" in step.metrics:
                self.say(LEGEND_OF_TURNS)
        width = self._console.width if self._console.is_terminal else None
        self.say(step_line(step, self._eta_s(step), width) + (" (paused)" if self._is_paused else ""))
        self._bar.update(self._task, completed=step.step + 1)

    def evaluated(self, evaluated: Evaluated) -> None:
        self.say(eval_line(evaluated))

    def failures(self, counts: Mapping[str, int], attempts: Mapping[str, int]) -> None:
        """
        Show failures under the progress bar; without a bar in lines, at the first failure and whenever they have
        doubled.
        """
        self._bar.failed = f"failed: {'; '.join(sentences(counts, attempts))}"
        total = sum(counts.values())
        if not self._console.is_terminal and total >= 2 * self._printed:
            self._printed = total
            self.say(self._bar.failed)

    def exited(self, node: str, cause: str, *, restarting: bool) -> None:
        self.say(f"{node} {cause}{'; starting it again' if restarting else ''}")

    def returned(self, returned: Returned) -> None:
        since = f", from step {returned.step}" if returned.step >= 0 else ""
        self.say(f"{returned.node} is back after {returned.away_s:.0f} s{since}")

    def paused(self, paused: Paused) -> None:
        """Show that an operator paused sampling, or let it go on."""
        self._is_paused = paused.is_paused
        self._bar.update(self._task, description="paused" if paused.is_paused else "")
        if paused.is_paused:
            self.say(f"paused by {paused.by}: no new leases; `asyncrl resume-sampling` lets sampling go on")
        else:
            self.say(f"sampling goes on: {paused.by} ended the pause")

    def changed(self, changed: SettingsChanged) -> None:
        for key, value in changed.values.items():
            self.say(f"{key} = {value} from now on, set by {changed.by}")

    def departed(self, node: str) -> None:
        self.say(f"{node} was drained and has left")

    def _eta_s(self, step: Step) -> float | None:
        """
        Time left at the pace since the first step seen; None at that and the next one.

        The first step waits for models to load, and the batch of the second may be complete by then.
        """
        now_s = step.metrics.get("time_s", 0.0)
        if self._first is None:
            self._first = step.step, now_s
        first_step, first_s = self._first
        if step.step < first_step + 2:
            return None
        return (now_s - first_s) / (step.step - first_step) * (self._steps - 1 - step.step)


def eval_line(evaluated: Evaluated) -> str:
    """
    Line of an evaluation; with several completions per prompt it has pass@k and maj@k too.

    Example:
        eval v10  held-out accuracy 41.0% of 256  maj@8 52.3%  pass@8 78.1%  len 212
        eval v10  held-out accuracy: none of 256 judged
    """
    if not evaluated.num_prompts:
        return f"eval v{evaluated.policy_version}  held-out accuracy: none of {evaluated.num_failed} judged"
    extra = multi_sample_metrics(evaluated.metrics)
    shares = "".join(f"  {name} {value:.1%}" for name, value in extra.items() if not name.startswith("avg@"))
    return (
        f"eval v{evaluated.policy_version}  held-out accuracy {evaluated.accuracy:.1%} of {evaluated.num_prompts}"
        f"{failed_note(evaluated.num_failed)}{shares}  len {evaluated.metrics.get('length_mean', 0):.0f}"
    )


def step_line(step: Step, eta_s: float | None, width: int | None = None) -> str:
    """
    The main metrics of a step, explained by `LEGEND`; with a ``width``, as many as fit, the most important ones.

    Example:
        step  41/60 v40 reward .512 acc .510 loss -0.0123 grad 0.41 len 38 stale 0.8/1 kl 0.0031 tok/s 21.4k wait ...
        step  41/60 reward .512 acc .510 loss -0.0123 grad 0.41 len 38 stale 0.8/1
    """
    m = step.metrics
    parts = [  # in the order of the line, each with its importance: 0 is always there
        (0, f"step {step.step + 1:>3}/{step.steps}"),
        (8, f"v{m['version']:.0f}"),
        (0, f"reward {_short(m['reward'])}"),
        (1, f"acc {_short(m['accuracy'])}"),
        (1, f"loss {m['loss']:.4f}" if "loss" in m else ""),
        (1, f"grad {m['grad_norm']:.2f}" if "grad_norm" in m else ""),
        (2, f"len {m['length_mean']:.0f}"),
        (2, f"turns {m['turns_mean']:.1f}" if "turns_mean" in m else ""),
        (3, f"stale {m['staleness_mean']:.1f}/{m['staleness_max']:.0f}"),
        (6, f"kl {m.get('kl', 0.0):.4f}"),
        (5, f"tok/s {_thousands(m['tokens_per_s'])}" if "tokens_per_s" in m else ""),
        (7, f"wait t/r {_percent(m, 'wait_trainer')}/{_percent(m, 'wait_rollout')}"),
        (4, "" if eta_s is None else f"eta {_clock(eta_s)}"),
    ]
    lines = (" ".join(text for rank, text in parts if text and rank <= least) for least in range(8, -1, -1))
    return next((line for line in lines if width is None or len(line) <= width), f"{parts[0][1]} {parts[2][1]}")


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.2f}"


def _percent(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.0%}" if key in metrics else "?"


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
