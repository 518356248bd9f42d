"""Train a model in a folder, or resume its training to the same weights.

RUN/
  run.json        data, model and recipe of the run, with the digest of its content
  data/           its token store, if it was prepared from text
  log.jsonl       losses and validations
  checkpoint-N/   to resume from
  best-N/         the model with the lowest validation perplexity
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npad.engine.devices import device_named, ensure_computes
from npad.engine.memory import out_of_memory_errors
from npad.errors import InvalidInput, StorageError
from npad.models.cgru.model import AttentionModel
from npad.storage.atomic import exclusive_lock, recover, write_atomic
from npad.storage.checkpoint import newest
from npad.storage.regular import read_json, seal, unseal
from npad.training.frequencies import begin_with_frequencies
from npad.training.loop import Loop, Progress, Watch
from npad.training.media import check_media, prepare_media
from npad.training.prepare import check, prepare
from npad.training.processes import joined
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.training.sizes import ensure_fits
from npad.training.store import Store
from npad.training.tasks import Task
from npad.training.update import Updater
from npad.validation import brief, ensure_path, one_line

FORMAT = 2


@dataclass(frozen=True)
class Plan:
    """The data, model and recipe of a run, as in `run.json`."""

    # a store's folder, or the arguments of `prepare`, or those of `prepare_media`
    data: str | Mapping[str, Any]
    options: Mapping[str, Any]  # the arguments of AttentionModel
    recipe: Recipe

    def save(self, folder: Path) -> None:
        """Write `run.json`.

        Raises:
            StorageError: it could not be written.
        """
        plain = {
            "format": FORMAT,
            "data": self.data,
            "model": self.options,
            "recipe": self.recipe.to_json(),
        }
        write_atomic(folder / "run.json", json.dumps(seal(plain), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read `run.json`.

        Raises:
            InvalidInput: the folder has none.
            StorageError: it is damaged, was edited or is of another format.
        """
        path = folder / "run.json"
        if not os.path.exists(path):
            raise InvalidInput(f"{one_line(folder)} holds no run to resume: no run.json")
        written = read_json(path).get("format")
        if written != FORMAT:
            rule = f"is a run of format {written!r:.20}; this npad reads {FORMAT}"
            raise StorageError(f"{folder} {rule}; start another run")
        plain = unseal(path)
        try:
            plan = cls(plain["data"], plain["model"], Recipe.from_json(plain["recipe"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error
        if not isinstance(plan.data, str | dict) or not isinstance(plan.options, dict):
            raise StorageError(f"{path} is damaged: its data or model is of another type")
        return plan

    def store(self, folder: Path) -> Path:
        """Return the folder of a run's token store."""
        return Path(self.data) if isinstance(self.data, str) else folder / "data"


def train(
    folder: str | Path,
    data: str | Path | Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
) -> tuple[Progress, str]:
    """Train a model from scratch.

    Args:
        folder: the folder of the run, without a run so far.
        data: a store's folder, or the arguments of `prepare` or `prepare_media`.
        options: the arguments of AttentionModel, other than the sizes of the vocabularies and the
            source, which are the data's.
        recipe: the hyper-parameters.
        device: where to train.
        watch: receives the events of the run.

    Returns:
        The progress made, and the reason why training stopped.

    Raises:
        InvalidInput: an argument is invalid, or another process trains in the folder.
        StorageError: the data is damaged, or a file could not be written.
        TrainingError: the loss or its gradient is not finite.
    """
    ensure_path("folder", folder)
    if not isinstance(data, Mapping):
        ensure_path("data", data)
    options, recipe = {} if options is None else options, Recipe() if recipe is None else recipe
    if not isinstance(options, Mapping):
        raise InvalidInput(
            f"options must be a dictionary of AttentionModel's arguments, not {brief(options)}"
        )
    if not isinstance(recipe, Recipe):
        raise InvalidInput(
            f"recipe must be a Recipe, such as Recipe(epochs=5), not {brief(recipe)}"
        )
    watch, device = _ensure_watch(watch), device_named(device)
    folder = Path(folder)
    plan = Plan(data if isinstance(data, Mapping) else str(Path(data).resolve()), options, recipe)
    _check_plan(plan, device)

    def begin() -> None:
        if newest(folder, "checkpoint") or (folder / "data").exists():
            raise InvalidInput(
                f"{folder} holds a run already; continue it with --resume, or choose another folder"
            )
        plan.save(folder)

    return _run(folder, device, watch, begin)


def resume(
    folder: str | Path,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
    **criteria: int | None,
) -> tuple[Progress, str]:
    """Continue an interrupted or finished run, bit-identically.

    Args:
        folder: the folder of the run.
        device: where to train.
        watch: receives the events of the run.
        criteria: new values of the recipe's epochs, updates or patience.

    Returns:
        The progress made, and the reason why training stopped.

    Raises:
        InvalidInput: an argument is invalid, or another process trains in the folder.
        StorageError: the run or its data is damaged, or a file could not be written.
        TrainingError: the loss or its gradient is not finite.
    """
    ensure_path("folder", folder)
    watch, device, folder = _ensure_watch(watch), device_named(device), Path(folder)
    for name in criteria.keys() - STOPPING_CRITERIA:
        allowed = ", ".join(STOPPING_CRITERIA)
        raise InvalidInput(f"a run is resumed with other {allowed}; its {name} stays as it was")
    plan = Plan.load(folder)
    changed = replace(plan, recipe=replace(plan.recipe, **criteria))  # type: ignore[arg-type]

    def begin() -> None:
        if plan.store(folder).exists():
            Store.open(plan.store(folder)).verify()
        if changed != plan:
            changed.save(folder)

    return _run(folder, device, watch, begin)


def _ensure_watch(watch: object) -> Watch:
    """Return `watch`, or one that ignores all events for None."""
    if watch is not None and not isinstance(watch, Watch):
        raise InvalidInput(f"watch must be a Watch, or None, not {brief(watch)}")
    return Watch() if watch is None else watch


def _check_plan(plan: Plan, device: torch.device) -> None:
    """Find mistakes before anything is written: sizes, options, noise, store, names of files."""
    arguments = inspect.signature(AttentionModel).parameters.keys()
    allowed = arguments - {"source_vocabulary", "target_vocabulary", "source"}
    for name in plan.options:
        if name not in allowed:
            raise InvalidInput(
                f"AttentionModel has no option {brief(name)}; it has {', '.join(sorted(allowed))}"
            )
    ensure_fits((1, 1), plan.options, plan.recipe, device)
    store = Store.open(plan.data) if isinstance(plan.data, str) else None
    about: Any = plan.data if store is None else store.about
    options = model_options(Task.of(about), plan.options)
    with torch.device("meta"):
        model = AttentionModel(1, 1, **options)
    if plan.recipe.noise is not None:
        plan.recipe.noise.check(model)
    if store is not None:
        ensure_fits(store.about["vocabulary"], options, plan.recipe, device)
        store.verify()
    else:
        _check_files(about)


def model_options(task: Task | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model for a task's data."""
    return dict(options) if task is None else task.model_options(options)


def _check_files(data: Mapping[str, Any]) -> None:
    """Check the arguments of `prepare` or `prepare_media`, and that the files exist."""
    check_data, name = (check_media, "prepare_media") if "task" in data else (check, "prepare")
    try:
        inspect.signature(check_data).bind(**data)
    except TypeError as error:
        raise InvalidInput(
            f"data must be a token store's folder, or the arguments of {name}: {error}"
        ) from error
    check_data(**data)
    if "task" in data:
        return
    for split in ("train", "valid", "tokenizers"):
        for file in data.get(split) or ():
            if Path(file).is_dir() or not (str(file) == "-" or Path(file).exists()):
                reason = "it is a folder" if Path(file).is_dir() else "there is no such file"
                raise InvalidInput(f"cannot read {file}: {reason}")


def _run(
    folder: Path, device: str | torch.device, watch: Watch, begin: Callable[[], None]
) -> tuple[Progress, str]:
    """Train in a folder; the first process calls `begin` before the others read `run.json`."""
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    first = int(os.environ.get("RANK", 0)) == 0
    with ExitStack() as stack:
        if first:  # before the processes join: preparing may take longer than they wait
            stack.enter_context(exclusive_lock(folder / ".lock", f"training in {folder}"))
            recover(folder)
            begin()
            plan = Plan.load(folder)
            if not isinstance(plan.data, str) and not plan.store(folder).exists():
                prepare_data = prepare_media if "task" in plan.data else prepare
                prepare_data(plan.store(folder), progress=watch.preparing, **plan.data)
        processes = stack.enter_context(joined(device))
        stack.enter_context(torch.random.fork_rng(devices))  # keep the caller's random state
        stack.enter_context(out_of_memory_errors("lower the batch or the units"))
        plan = Plan.load(folder)
        ensure_computes(device, plan.recipe.precision)
        store = Store.open(plan.store(folder))
        torch.manual_seed(plan.recipe.seed)
        vocabulary, options = store.about["vocabulary"], model_options(store.task, plan.options)
        ensure_fits(vocabulary, options, plan.recipe, device)
        model = AttentionModel(*vocabulary, **options)
        pretrained = store.pretrained
        if pretrained is not None:
            model.get_submodule("pretrained").load_state_dict(pretrained)
        if model.source == "picture":
            begin_with_frequencies(model, store.train.target)
        updater = Updater(model, store.train, plan.recipe, device, processes)
        loop = Loop(folder, store, updater, watch)
        reason = loop.run()
        return loop.progress, reason
