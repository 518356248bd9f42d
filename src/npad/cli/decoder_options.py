"""Commands that decode: the options of all registered decoders, made from their fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from npad.cli.decoder_choice import compared_decoders
from npad.cli.decoder_choice import make_decoder as make_decoder
from npad.cli.decoder_fields import PANEL, DecoderOption, flag_of, options_of
from npad.cli.terminal import note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import defaults_of
from npad.search.registry import DECODERS
from npad.search.selected import is_mbr_on_a_beam
from npad.specs import name_of_kind

# BLEU of en-de on its test set, docs/results/en-de/README.md, "Which candidate to return"
MBR_ON_A_BEAM = (
    "warning: MBR on one beam's list is worse than the beam alone (40.2 BLEU against 43.2 on "
    "en-de); give it samples, --decoder sampling, or use --selector length-normalised"
)


def all_options() -> list[inspect.Parameter]:
    """Return the options of all registered decoders as parameters for typer, each once.

    Decoders with options of the same name share the option.
    """
    first: dict[str, DecoderOption] = {}
    owners: dict[str, list[str]] = {}
    for kind in DECODERS:
        for option in options_of(kind):
            first.setdefault(option.name, option)
            owners.setdefault(option.name, []).append(name_of_kind(kind))
    return [option.parameter(owners[name]) for name, option in first.items()]


def decodes(
    default: str | None = "beam", **instead: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a command that decodes: `with_decoder_options` adds the options of all decoders.

    Args:
        default: the decoder without --decoder; None if the command receives None then.
        instead: the default where another option is given: `confidence="beam"`.
    """

    def mark(command: Callable[..., None]) -> Callable[..., None]:
        command.default_decoder = default  # type: ignore[attr-defined]
        command.default_instead = instead  # type: ignore[attr-defined]
        return command

    return mark


def with_decoder_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all registered decoders to a marked command.

    A command marked by `decodes` receives the decoder that the options describe, as `decoder`; one
    marked by `compares` receives every compared decoder, as `decoders`. What the options leave open
    is the default of the command's `model`. Other commands are returned unchanged.
    """
    options = all_options()
    if hasattr(command, "default_decoder"):
        default, instead = command.default_decoder, command.default_instead  # type: ignore[attr-defined]
        defaults_shown = "; ".join(
            [
                *([] if default is None else [default]),
                *(f"{other} with {flag_of(option)}" for option, other in instead.items()),
            ]
        )
        listed = (
            f"{', '.join(DECODERS.kinds)}; or with its fields, as beam(width=3). [{defaults_shown}]"
        )
        choice = typer.Option("--decoder", "-d", metavar="NAME", help=listed, rich_help_panel=PANEL)
        keyword = inspect.Parameter.KEYWORD_ONLY
        annotation = Annotated[str | None, choice]
        extra = inspect.Parameter("decoder", keyword, default=None, annotation=annotation)

        @functools.wraps(command)
        def decoding(decoder: str | None, **values: Any) -> None:
            if decoder is None:
                given = [other for option, other in instead.items() if values[option] is not None]
                decoder = next(iter(given), default)
            settings = {option.name: values.pop(option.name) for option in options}
            settings["nbest"] = values.get("nbest")
            if "device" in values and values.get("engine") is None:  # workers have their own
                device_named(values["device"], "--device")  # refused before a model is asked for
            if decoder is None:
                for name in _without_none(settings):
                    raise InvalidInput(
                        f"{flag_of(name)} belongs to a decoder; choose it with --decoder"
                    )
                command(decoder=None, **values)
                return
            defaults = defaults_of(values["model"])
            chosen = make_decoder(decoder, _without_none(settings), defaults)
            if is_mbr_on_a_beam(chosen):
                note(MBR_ON_A_BEAM)
            command(decoder=chosen, **values)

        return _with_parameters(decoding, command, [extra, *options], "decoder")
    if hasattr(command, "compared_defaults"):
        compared = command.compared_defaults

        @functools.wraps(command)
        def comparing(**values: Any) -> None:
            settings = {option.name: values.pop(option.name) for option in options}
            settings = compared | _without_none(settings)
            decoders = compared_decoders(settings, defaults_of(values["model"]))
            command(decoders=decoders, **values)

        return _with_parameters(comparing, command, options, "decoders")
    return command


def compares(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a command that compares decoders.

    Args:
        defaults: options that differ from the decoders' defaults.
    """

    def mark(command: Callable[..., None]) -> Callable[..., None]:
        command.compared_defaults = defaults  # type: ignore[attr-defined]
        return command

    return mark


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _with_parameters(
    wrapped: Callable[..., None],
    command: Callable[..., None],
    extra: list[inspect.Parameter],
    replaced: str,
) -> Callable[..., None]:
    """Give `wrapped` the parameters of `command` without `replaced`, and the extra ones."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.name != replaced] + extra
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped
