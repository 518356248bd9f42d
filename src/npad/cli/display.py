"""Progress of training on stderr: a live line on a terminal, elsewhere one line per validation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from npad.cli.terminal import SECONDS_PER_NOTE, clock_time, note
from npad.errors import noting_interrupts
from npad.reproduce.forecast import Outlook
from npad.training.loop import RunProgress, Watch
from npad.training.recipe import Recipe

LIVE = (
    "epoch {task.fields[epoch]}  update {task.completed:,}  {task.fields[speed]:,} tokens/s  "
    "{task.fields[losses]}"
)


class Display(Watch):
    """Shows epoch, update, tokens per second, loss, validation perplexity and the time left."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.losses = {"loss": "", "validation": ""}
        self.noted: float | None = None  # when the last measurement was noted

    @contextmanager
    def live(self) -> Iterator[None]:
        columns = (
            SpinnerColumn(),
            TextColumn(LIVE),
            BarColumn(bar_width=16),
            TimeRemainingColumn(),
        )
        terminal = self.console.is_terminal
        with Progress(
            *columns, console=self.console, transient=True, disable=not terminal
        ) as self.progress:
            self.task = self.progress.add_task(
                "", total=None, visible=False, epoch="–", speed=0, losses=""
            )
            yield

    def preparing(self, step: str, done: int, total: int) -> None:
        """Show how far a step of preparing the data is; total: 0 if unknown."""
        out_of = f" of {total:,}" if total else ""
        self.progress.update(self.task, visible=False)
        if self.console.is_terminal and done:
            self.console.print(f"{step} {done:,}{out_of}", end="\r")

    def measuring(self, row: str, outlook: Outlook) -> None:
        """Show the row of a report that is being measured; elsewhere than a terminal, now and then.

        The total and the time left are estimates.
        """
        self.progress.update(self.task, visible=False)
        left = outlook.seconds_left
        line = f"{outlook.done:,} of about {outlook.total:,} measured"
        line += f", about {clock_time(left)} left" if left is not None else ""
        if self.console.is_terminal:
            shown = f"{line}; {row}"[: self.console.width - 1]
            self.console.print(shown, end="\r", highlight=False)
        elif self.noted is None or time.monotonic() - self.noted >= SECONDS_PER_NOTE:
            note(f"{line}; {row}")
            self.noted = time.monotonic()

    def epoch(self, place: RunProgress, batches: int, recipe: Recipe) -> None:
        total = place.update + (recipe.epochs - place.epoch) * batches - place.position
        total = total if recipe.updates is None else min(total, recipe.updates)
        epoch = f"{place.epoch + 1}/{recipe.epochs}"
        self.progress.update(
            self.task, total=total, completed=place.update, epoch=epoch, visible=True
        )

    def report(self, record: dict[str, Any]) -> None:
        if "best" in record:  # of a validation
            short, measures = _measures(record)
            self.losses["validation"] = f"validation {short}"
            best = "  best so far" if record["best"] else ""
            update, epoch = f"update {record['update']:,}", f"epoch {record['epoch']:g}"
            moment = f"{update}  {epoch}  {clock_time(record['seconds'])}"
            self.console.print(f"{moment}  {measures}{best}", highlight=False, soft_wrap=True)
        else:
            self.losses["loss"] = f"loss {record['nll']:.2f}"
            self.progress.update(
                self.task, completed=record["update"], speed=record["tokens_per_second"]
            )
        self.progress.update(self.task, losses="  ".join(filter(None, self.losses.values())))


def _measures(record: dict[str, Any]) -> tuple[str, str]:
    """Return the measures of a validation in short, and as its line shows them."""
    if "valid_perplexity" in record:
        perplexity = f"{record['valid_perplexity']:.2f}"
        return perplexity, f"validation perplexity {perplexity}, NLL {record['valid_nll']:.2f}"
    criterion, log_prob = f"{record['criterion']:.3f}", f"log p {record['log_prob']:.3f}"
    if record["update"] == 0:
        return criterion, f"without an actor: criterion {criterion}, {log_prob}"
    loss = f"perplexity {record['perplexity']:.3f}"
    return criterion, f"{loss}, criterion {criterion}, {log_prob}"


def resumable(command: str, folder: Path) -> AbstractContextManager[None]:
    """Add to an interrupt how the run of a command in a folder continues, if it has begun."""
    way_on = f"{command} {folder} --resume continues"
    return noting_interrupts(lambda: way_on if (folder / "run.json").exists() else "")
