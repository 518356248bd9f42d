"""npad info: a model's sizes, noise sites and training."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from npad.cli.fit_confidence import as_record, summary
from npad.cli.options import DEFAULT_MODEL, complete_model, option
from npad.cli.terminal import console, figures
from npad.errors import StorageError
from npad.model import name_of
from npad.pipelines.loading import load
from npad.pipelines.names import ABOUT, ModelReference
from npad.pipelines.translation import Translator
from npad.search.defaults import Defaults
from npad.specs import label
from npad.storage import checkpoint
from npad.storage.actors import read_actor
from npad.storage.confidence import Confidence
from npad.training.recipe import LEARNING_RATES
from npad.validation import brief, counted


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="`en-de`, `toy`, a folder of `npad train`, or `hf:NAME_OR_PATH`.",
            autocompletion=complete_model,
        ),
    ] = DEFAULT_MODEL,
    as_json: Annotated[bool, option("Print one JSON object.", "--json")] = False,
) -> None:
    """Show a model's sizes, noise sites, and how it was trained.

    Examples:

        npad info en-de

        npad info runs/en-cs --json

        npad info hf:Helsinki-NLP/opus-mt-en-de
    """
    reference = ModelReference.parse(model)
    loaded, fit, languages = _load(reference)
    about = ({} if languages is None else {"languages": "-".join(languages)}) | ABOUT.get(model, {})
    config = _config(reference)
    name, parameters, sites = name_of(loaded), _parameters(loaded), dict(loaded.sites)
    defaults = Defaults.of(loaded)
    noise, selector = defaults.noise, label(defaults.selector)
    if as_json:
        record = {"name": name, "parameters": parameters, "sites": sites}
        record["default_noise"] = {"sigma": noise.sigma, "relative": noise.relative}
        record |= {"default_selector": selector, "confidence": as_record(fit)}
        print(json.dumps(config | about | record))
        return
    rows = {"name": name, **about, "kind": _kind(loaded), "parameters": f"{parameters:,}"}
    rows |= {
        option.replace("_", " "): _format(value)
        for option, value in config.get("model", {}).items()
    }
    rows["noise sites"] = ", ".join(f"{site} ({width})" for site, width in sites.items())
    relative = " (--relative, of the RMS)" if noise.relative else ""
    rows["default noise"] = f"--sigma {noise.sigma:g}{relative}"
    rows["default selector"] = selector
    if fit is not None:
        rows["confidence"] = summary(fit)
    try:
        if "training" in config:
            rows |= _training_rows(config["training"])
        if "actor" in config:
            rows["actor"] = _actor_row(config["actor"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{config['folder']} is damaged: the description of its training cannot be read "
            f"({brief(error)})"
        ) from error
    if config:
        rows["folder"] = f"{config['folder']} (format {config['format']}, npad {config['npad']})"
    console().print(figures(rows))


def _load(reference: ModelReference) -> tuple[Any, Confidence | None, tuple[str, str] | None]:
    """Return a model of texts, pictures or sounds, the fit of its confidence, and its languages."""
    pipeline = load(reference.name)
    fit = pipeline.confidence if isinstance(pipeline.confidence, Confidence) else None
    languages = pipeline.languages if isinstance(pipeline, Translator) else None
    # without what npad wraps around a model to decode faster or to steer it
    return getattr(pipeline.model, "plain", pipeline.model), fit, languages


def _config(reference: ModelReference) -> dict[str, Any]:
    """Return the folder and config.json of a model that npad trained; empty for others."""
    if reference.folder is None:
        return {}
    folder = checkpoint.resolve(reference.folder)
    config = {"folder": str(folder), **checkpoint.read_config(folder)}
    training = config.get("training", {})
    if "recipe" in training:
        config["training"] = training | {"recipe": _with_rate(training["recipe"])}
    actor = read_actor(folder)
    return config if actor is None else config | {"actor": actor}


def _with_rate(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the learning rate that its optimiser has by default."""
    rate = recipe.get("learning_rate")
    return recipe | {
        "learning_rate": LEARNING_RATES.get(recipe.get("optimiser", "")) if rate is None else rate
    }


def _kind(model: Any) -> str:
    """Return the class of a model; for a Hugging Face model, that of transformers."""
    return type(getattr(model, "model", model)).__name__


def _parameters(model: Any) -> int:
    """Return the number of parameters; shared ones count once."""
    if hasattr(model, "size"):
        return int(model.size())
    network = getattr(model, "model", model)
    if not hasattr(network, "parameters"):
        return 0
    return sum(parameter.numel() for parameter in network.parameters())


def _actor_row(about: dict[str, Any]) -> str:
    """Return an actor's kind, sites, inputs and training in one line."""
    options, training = about["actor"], about["training"]
    sites = ", ".join(f"{call} ({width})" for call, width in options["calls"].items())
    inputs = ", ".join(options["inputs"])
    trained = ", ".join(f"{name} {_format(value)}" for name, value in training.items())
    units = f"{options['units']:,} units"
    return f"{options['kind']}, {units}, pushes {sites}, reads {inputs}; {trained}"


def _training_rows(training: dict[str, Any]) -> dict[str, str]:
    recipe = {name: value for name, value in training["recipe"].items() if value is not None}
    pairs = training["data"]["train"]["kept"]
    return {
        "trained on": f"{counted(pairs, 'pair')}, {counted(training['update'], 'update')}",
        "validation perplexity": f"{training['perplexity']:.3f}",
        "recipe": ", ".join(f"{name} {_format(value)}" for name, value in recipe.items()),
    }


def _format(value: Any) -> str:
    """Return a value of a configuration as text."""
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{name}={_format(entry)}" for name, entry in value.items())
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
    return str(value)
