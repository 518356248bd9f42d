"""Train a model in a folder, or resume its training to the same weights.

RUN/
  run.json        data, model and recipe of the run, with the digest of its content
  data/           its token store, if it was prepared from text
  loss.png        written by `npad train`
  and the files of `training.loop`
"""

from __future__ import annotations

import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from npad.engine.devices import device_named, ensure_computes
from npad.engine.memory import out_of_memory_errors, total_memory
from npad.errors import InvalidInput, StorageError
from npad.models.cgru.model import AttentionModel
from npad.models.network import without_weights
from npad.noise.noisy import Noise, noise_as_names, noise_from_names
from npad.storage.atomic import exclusive_lock, recover, write_atomic
from npad.storage.checkpoint import newest
from npad.storage.regular import read_json, seal, unseal
from npad.training.loop import Loop, RunProgress, Watch
from npad.training.prepare import TrainingData, data_of
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.training.sources import SourceKind
from npad.training.store import Store
from npad.training.update import ModelUpdater, Replicas, begin_with_frequencies, joined
from npad.training.validation import Perplexity
from npad.validation import brief, ensure_path, one_line

FORMAT = 3
RUN = "run.json"
SIZES = ("units", "embedding", "layers")
COPIES = {"adam": 4, "adadelta": 4, "sgd": 2}  # of a weight: itself, gradient, optimiser state


class RunPlan(ABC):
    """What determines the weights of a run, as in its `run.json`."""

    kind: ClassVar[str]
    lower: ClassVar[str]  # what to lower where memory is short
    in_processes: ClassVar[bool] = False  # whether torchrun may start several processes

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can represent."""

    @classmethod
    @abstractmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Build a plan from what `to_json` returned."""

    @abstractmethod
    def loop(self, folder: Path, device: torch.device, watch: Watch, replicas: Replicas) -> Loop:
        """Return the loop of this process."""

    def prepare(self, folder: Path, watch: Watch) -> None:  # noqa: B027 (nothing by default)
        """Make what all processes need, in the first one alone."""

    def save(self, folder: Path) -> None:
        """Write `run.json`.

        Raises:
            StorageError: it could not be written.
        """
        content = seal({"format": FORMAT, "kind": self.kind, "plan": self.to_json()})
        write_atomic(folder / RUN, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read `run.json`.

        Raises:
            InvalidInput: the folder has none, or one of another kind.
            StorageError: it is damaged, was edited or is of another format.
        """
        path = folder / RUN
        if not os.path.exists(path):
            raise InvalidInput(f"{one_line(folder)} holds no run to resume: no {RUN}")
        written = read_json(path).get("format")
        if written != FORMAT:
            rule = f"is a run of format {written!r:.20}; this npad reads {FORMAT}"
            raise StorageError(f"{folder} {rule}; start another run")
        content = unseal(path)
        if content.get("kind") != cls.kind:
            raise InvalidInput(
                f"{one_line(folder)} is a run of {content.get('kind')!r:.20}, not of {cls.kind!r}; "
                "resume it with the command that began it"
            )
        try:
            return cls.from_json(content["plan"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error


@dataclass(frozen=True)
class TrainingPlan(RunPlan):
    """The data, model and recipe of a run."""

    kind, lower, in_processes = "model", "batch or the units", True
    data: str | TrainingData  # a store's folder, or what to prepare one from
    options: Mapping[str, Any]  # the arguments of AttentionModel
    recipe: Recipe

    def to_json(self) -> dict[str, Any]:
        data = self.data if isinstance(self.data, str) else self.data.to_json()
        return {"data": data, "model": self.options, "recipe": self.recipe.to_json()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        data = plain["data"]
        if not isinstance(data, str | dict) or not isinstance(plain["model"], dict):
            raise TypeError("its data or model is of another type")
        data = data if isinstance(data, str) else data_of(data)
        return cls(data, plain["model"], Recipe.from_json(plain["recipe"]))

    def store(self, folder: Path) -> Path:
        """Return the folder of a run's token store."""
        return Path(self.data) if isinstance(self.data, str) else folder / "data"

    def prepare(self, folder: Path, watch: Watch) -> None:
        if not isinstance(self.data, str) and not self.store(folder).exists():
            self.data.prepare(self.store(folder), watch.preparing)

    def loop(self, folder: Path, device: torch.device, watch: Watch, replicas: Replicas) -> Loop:
        recipe = self.recipe
        ensure_computes(device, recipe.precision)
        store = Store.open(self.store(folder))
        torch.manual_seed(recipe.seed)
        vocabulary, options = store.about["vocabulary"], model_options(store.kind, self.options)
        ensure_fits(vocabulary, options, recipe, device)
        model = AttentionModel(*vocabulary, **options)
        pretrained = store.pretrained
        if pretrained is not None:
            model.get_submodule("pretrained").load_state_dict(pretrained)
        if model.source == "picture":
            begin_with_frequencies(model, store.train.target)
        updater = ModelUpdater(model, store.train, recipe, device, replicas)
        validation = Perplexity(model, store, recipe, device, replicas)
        determined_by = {"model": model.options, "data": store.about}
        return Loop(folder, updater, validation, determined_by, watch)


def train(
    folder: str | Path,
    data: str | Path | Mapping[str, Any] | TrainingData,
    options: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
) -> tuple[RunProgress, str]:
    """Train a model from scratch.

    Args:
        folder: the folder of the run, without a run so far.
        data: a store's folder, or the fields of TextData or MediaData.
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
    if not isinstance(data, Mapping | TrainingData):
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
    watch, device, folder = ensure_watch(watch), device_named(device), Path(folder)
    if isinstance(data, Mapping):
        data = data_of(data)
    plan = TrainingPlan(
        data if isinstance(data, TrainingData) else str(Path(data).resolve()), options, recipe
    )
    _check_plan(plan, device)
    if isinstance(data, TrainingData):
        plan = replace(plan, data=data.absolute())  # to resume from any directory

    def begin() -> None:
        if newest(folder, "checkpoint") or (folder / "data").exists():
            raise InvalidInput(
                f"{folder} holds a run already; continue it with --resume, or choose another folder"
            )
        plan.save(folder)

    return run_in(folder, TrainingPlan, device, watch, begin)


def resume(
    folder: str | Path,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
    **criteria: int | None,
) -> tuple[RunProgress, str]:
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
    watch, device, folder = ensure_watch(watch), device_named(device), Path(folder)
    for name in criteria.keys() - STOPPING_CRITERIA:
        allowed = ", ".join(STOPPING_CRITERIA)
        raise InvalidInput(f"a run is resumed with other {allowed}; its {name} stays as it was")
    plan = TrainingPlan.load(folder)
    changed = replace(plan, recipe=replace(plan.recipe, **criteria))  # type: ignore[arg-type]

    def begin() -> None:
        if plan.store(folder).exists():
            Store.open(plan.store(folder)).verify()
        if changed != plan:
            changed.save(folder)

    return run_in(folder, TrainingPlan, device, watch, begin)


def run_in(
    folder: Path,
    kind: type[RunPlan],
    device: torch.device,
    watch: Watch,
    begin: Callable[[], None] = lambda: None,
) -> tuple[RunProgress, str]:
    """Train in a folder, alone in it, and leave the caller's random state as it is.

    Args:
        folder: of the run.
        kind: of its plan.
        device: where to train.
        watch: receives the events of the run.
        begin: called by the first process alone, before it joins the others, which may wait long.
    """
    with ExitStack() as stack:
        if not kind.in_processes or int(os.environ.get("RANK", 0)) == 0:
            stack.enter_context(exclusive_lock(folder / ".lock", f"training in {folder}"))
            recover(folder)
            begin()
            kind.load(folder).prepare(folder, watch)
        replicas = stack.enter_context(joined(device)) if kind.in_processes else Replicas()
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(out_of_memory_errors(f"lower the {kind.lower}"))
        loop = kind.load(folder).loop(folder, device, watch, replicas)
        reason = loop.run()
        return loop.progress, reason


def ensure_watch(watch: object) -> Watch:
    """Return `watch`, or one that ignores all events for None."""
    if watch is not None and not isinstance(watch, Watch):
        raise InvalidInput(f"watch must be a Watch, or None, not {brief(watch)}")
    return Watch() if watch is None else watch


def _check_plan(plan: TrainingPlan, device: torch.device) -> None:
    """Find mistakes before anything is written: sizes, options, noise, store, names of files."""
    arguments = inspect.signature(AttentionModel).parameters.keys()
    allowed = arguments - {"source_vocabulary", "target_vocabulary", "source"}
    for name in plan.options:
        if name not in allowed:
            raise InvalidInput(
                f"AttentionModel has no option {brief(name)}; it has {', '.join(sorted(allowed))}"
            )
    sizes = {name: plan.options[name] for name in SIZES if name in plan.options}
    ensure_fits((1, 1), sizes, plan.recipe, device)  # whatever the data
    store = Store.open(plan.data) if isinstance(plan.data, str) else None
    kind = SourceKind.of(vars(plan.data) if store is None else store.about)
    options = model_options(kind, plan.options)
    vocabulary = (1, 1) if store is None else store.about["vocabulary"]
    model = ensure_fits(vocabulary, options, plan.recipe, device)
    if plan.recipe.noise is not None:
        plan.recipe.noise.check(model)
        _ensure_named(plan.recipe.noise)
    if store is not None:
        store.verify()
    elif isinstance(plan.data, TrainingData):
        plan.data.ensure_files()


def _ensure_named(noise: Noise) -> None:
    """Require noise that run.json can hold, so that the run can be resumed."""
    names = noise_as_names(noise)
    try:
        noise_from_names(**names)
    except InvalidInput as error:
        parts = f"{names['schedule']} and {names['distribution']}"
        rule = "a run can be resumed only with a schedule and a distribution that npad has by name"
        raise InvalidInput(f"{rule}, not with {parts}") from error


def ensure_fits(
    vocabulary: tuple[int, int], options: Mapping[str, Any], recipe: Recipe, device: torch.device
) -> AttentionModel:
    """Refuse a model that could not be trained in the memory of a device.

    Args:
        vocabulary: the sizes of source and target, or lower bounds of them.
        options: the arguments of AttentionModel.
        recipe: its optimiser decides how many copies of the weights are held.
        device: where to train.

    Returns:
        The model, on the meta device.

    Raises:
        InvalidInput: an option is invalid, or the memory is too small.
    """
    with without_weights():
        model = AttentionModel(*vocabulary, **options)
    weights = sum(weight.numel() for weight in model.parameters())
    required = 4 * COPIES[recipe.optimiser] * weights  # bytes, in float32
    try:
        memory = total_memory(device)
    except (AssertionError, RuntimeError):  # a missing GPU is reported later
        memory = total_memory(torch.device("cpu"))
    if required > memory:
        sizes = ", ".join(f"{name} {model.options[name]:,}" for name in SIZES)
        raise InvalidInput(
            f"a model of {sizes} cannot be trained in the {memory / 2**30:,.0f} GiB of {device}; "
            "lower the units, the embedding, the layers or the vocabulary"
        )
    return model


def model_options(kind: SourceKind | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model for a kind of source; None: text."""
    return dict(options) if kind is None else kind.model_options(options)
