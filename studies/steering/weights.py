"""All weights of a model trained on the pairs that an actor learns: is a gain mere distillation?"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from npad.models.cgru.fast import prepared
from npad.models.cgru.model import AttentionModel
from npad.storage.atomic import atomic_folder
from npad.storage.checkpoint import set_weights
from npad.training.batches import Buckets
from npad.training.store import PairCorpus
from npad.training.update import ModelUpdater
from npad.training.validation import GreedySearch
from studies.steering.variant import Variant

FILE = "weights.safetensors"
CURVE = "curve.json"


def fine_tuned(
    folder: Path,
    model: AttentionModel,
    pairs: Callable[[], PairCorpus],
    variant: Variant,
    seed: int,
    validation: GreedySearch,
    stop: Callable[[], bool],
) -> tuple[AttentionModel, list[dict[str, Any]]] | None:
    """Train a copy of a model, and keep the epoch with the best criterion of greedy search.

    What is trained is stored once, in `folder`; a run that was killed begins anew.

    Args:
        folder: where the weights are kept.
        model: the model, which stays as it is.
        pairs: returns the pairs to learn.
        variant: its epochs, rate, weight decay and batch.
        seed: of the order and of dropout.
        validation: decodes the validation sources.
        stop: asked every few updates; if true, None is returned.

    Returns:
        The model with the best weights, and the measures after each epoch.
    """
    tuned = copy.deepcopy(model)
    if folder.exists():
        set_weights(tuned, load_file(folder / FILE))
        return tuned.requires_grad_(False).eval(), json.loads((folder / CURVE).read_text())
    device, corpus = model.device, pairs()
    updater = ModelUpdater(tuned.requires_grad_(True), corpus, variant.recipe(device, seed), device)
    if device.type == "cuda":
        updater.batcher = Buckets(corpus, model.special, variant.batch)
    if variant.decay:
        parameters = tuned.parameters()
        updater.optimiser = torch.optim.AdamW(parameters, variant.rate, weight_decay=variant.decay)
    curve: list[dict[str, Any]] = []
    best: dict[str, torch.Tensor] = {}
    update = 0
    for epoch in range(variant.epochs):
        batches = updater.batcher.epoch(seed, epoch)
        for i, batch in enumerate(batches):
            done = (epoch + i / len(batches)) / variant.epochs
            for group in updater.optimiser.param_groups:
                group["lr"] = variant.rate * (0.5 + 0.5 * math.cos(math.pi * done))
            update += 1
            updater.update(batch, update)
            if update % 50 == 0 and stop():
                return None
        tuned.eval()
        with torch.no_grad():
            measures = validation(prepared(tuned))
        tuned.train()
        if not curve or measures["criterion"] > max(point["criterion"] for point in curve):
            best = {name: x.detach().cpu().clone() for name, x in tuned.named_parameters()}
        curve.append({"epoch": epoch + 1, "update": update, **measures})
    with atomic_folder(folder) as part:
        save_file(best, part / FILE)
        (part / CURVE).write_text(json.dumps(curve))
    set_weights(tuned, best)
    return tuned.requires_grad_(False).eval(), curve
