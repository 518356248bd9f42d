"""The front door of training: a folder, data and a recipe in; a trained model out, however often it was interrupted.

RUN/
  run.json        data, model and recipe of the run
  data/           its token store, where it was made from text
  log.jsonl       what happened
  checkpoint-N/   to go on from
  best-N/         the model with the lowest validation perplexity
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npad.errors import InvalidInput, StorageError
from npad.models.attention import AttentionModel
from npad.training.folders import sweep, write_whole
from npad.training.loop import Loop, Progress, Watch
from npad.training.prepare import prepare
from npad.training.processes import joined
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.update import Updater

FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """What a run is to do, as `run.json` keeps it.

    data: a token store's folder, or the arguments of `prepare` for text. options: of AttentionModel.
    """

    data: str | Mapping[str, Any]
    options: Mapping[str, Any]
    recipe: Recipe

    def save(self, folder: Path) -> None:
        plain = {"format": FORMAT, "data": self.data, "model": self.options, "recipe": self.recipe.to_json()}
        write_whole(folder / "run.json", json.dumps(plain, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Plan:
        try:
            plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise StorageError(f"{folder} is a run of format {plain['format']}; this npad reads {FORMAT}")
            return cls(plain["data"], plain["model"], Recipe.from_json(plain["recipe"]))
        except FileNotFoundError as error:
            raise InvalidInput(f"{folder} holds no run to resume: it has no run.json") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{folder}/run.json is damaged: {error}") from error


def train(
    folder: str | Path,
    data: str | Path | Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
) -> tuple[Progress, str]:
    """Train a model from the start, in a folder of its own: how far it came, and why it stopped."""
    folder = Path(folder)
    if (folder / "run.json").exists():
        raise InvalidInput(f"{folder} holds a run already; continue it with --resume, or choose another folder")
    plan = Plan(data if isinstance(data, Mapping) else str(Path(data).resolve()), options or {}, recipe or Recipe())
    with torch.random.fork_rng([]):
        AttentionModel(1, 1, **{**plan.options, "units": 1, "embedding": 1})  # are those its options?
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from error
    plan.save(folder)
    return _go(folder, plan, device, watch or Watch())


def resume(
    folder: str | Path,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
    **longer: int | None,
) -> tuple[Progress, str]:
    """Go on with a run, to the same weights as if it had never stopped. `longer`: epochs, updates or patience anew."""
    folder = Path(folder)
    plan = Plan.load(folder)
    if longer:
        plan = replace(plan, recipe=replace(plan.recipe, **longer))  # type: ignore[arg-type]
        plan.save(folder)
    return _go(folder, plan, device, watch or Watch())


def _go(folder: Path, plan: Plan, device: str | torch.device, watch: Watch) -> tuple[Progress, str]:
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    if int(os.environ.get("RANK", 0)) == 0:
        sweep(folder)
    with joined(device) as processes, torch.random.fork_rng(devices):  # the caller's random numbers stay theirs
        if isinstance(plan.data, str):
            store = Store.open(plan.data)
        else:
            if processes.first and not (folder / "data").exists():
                prepare(folder / "data", progress=watch.preparing, **plan.data)
            processes.wait()
            store = Store.open(folder / "data")
        torch.manual_seed(plan.recipe.seed)
        source, target = store.subwords
        model = AttentionModel(source.size, target.size, **plan.options)
        updater = Updater(model, store.train, plan.recipe, device, processes)
        loop = Loop(folder, store, updater, watch)
        reason = loop.run()
        return loop.progress, reason
