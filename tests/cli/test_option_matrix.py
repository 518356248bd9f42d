"""Every option of every decoder means the same by command, by HTTP and in Python."""

from __future__ import annotations

from dataclasses import MISSING, replace
from types import NoneType
from typing import Literal, get_args, get_origin

import pytest
import typer

import npad
from npad import MBR, Beam, Greedy, Noise, Selected
from npad.cli.decoder_options import compared_decoders, decodes, flag_of
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.request import options_of, takes_selector
from npad.selectors import ModelMBR, WithCut
from npad.serve.limits import Limits
from npad.serve.options import decoding_for
from npad.signatures import signature
from npad.specs import Registry, label

TOY = npad.load("toy").model
TRANSFORMER = Defaults(Noise(0.1, relative=True), WithCut(), chains=10)


def another(option):
    """A value that is not the option's default, made from the type of its field."""
    kinds = [kind for kind in get_args(option.kind) or (option.kind,) if kind is not NoneType]
    kind, default = kinds[0], option.default
    if get_origin(option.kind) is Literal:
        return next(choice for choice in reversed(kinds) if choice != default)
    if get_origin(option.kind) is tuple:
        return (Greedy(), Beam(3)) if kind is Decoder else (0.25, 0.75)
    if kind is Decoder:
        return Beam(3)
    if isinstance(default, MBR):
        return ModelMBR("bleu")
    if kind is bool:
        return not default
    if kind is str:
        return "output"
    if kind is int:
        return default + 1 if isinstance(default, int) else 2
    if kind is float:
        return default / 2 if isinstance(default, float) else 0.5
    parts = (part() for part in Registry.for_field(kind) if part is not type(default))
    return next(part for part in parts if not getattr(part, "relative_only", False))


def in_python(kind, option, value):
    """The decoder of a class with one field, or one field of its noise, set."""
    name, decoder = option.field.name, kind()
    if name in decoder.__dataclass_fields__:
        return replace(decoder, **{name: value})
    if takes_selector(kind) and name == "selector":
        return Selected(decoder, value)
    return replace(decoder, noise=replace(decoder.noise, **{name: value}))


def by_command(words):
    """The signature of the decoder that a command receives from these options."""
    received = []

    @decodes()
    def command(model: str = "toy", *, decoding) -> None:
        received.append(decoding.decoder)

    app = typer.Typer()
    app.command()(command)
    typer.main.get_command(app).main(words, standalone_mode=False)
    return signature(received[0], TOY)


CASES = [
    pytest.param(kind, option, id=f"{name}-{option.name}")
    for name, kind in DECODERS.kinds.items()
    for option in options_of(kind)
]


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_an_option_is_its_field_by_command_and_by_http(kind, option):
    value = another(option)
    assert value is not MISSING
    name = next(name for name, known in DECODERS.kinds.items() if known is kind)
    expected = signature(in_python(kind, option, value), TOY)
    flag = flag_of(option.name)
    words = [flag, label(value)]
    if isinstance(value, bool):
        words = [flag if value else f"--no-{flag[2:]}"]
    assert by_command(["-d", name, *words]) == expected
    unlimited = Limits(rows=10**6, mbr_rows=10**6, budget=10**7)
    for text in (label(value), value):
        plain = isinstance(text, str | bool | int | float)
        given = {"decoder": name, option.name: text if plain else label(text)}
        assert signature(decoding_for(TOY, given, unlimited)[0].decoder, TOY) == expected


@pytest.mark.parametrize("name", DECODERS.kinds)
def test_a_decoder_without_options_is_itself_everywhere(name):
    expected = signature(DECODERS.kinds[name](), TOY)
    for spec in (name, f"{name}()"):
        assert by_command(["-d", spec]) == expected
        assert signature(decoding_for(TOY, {"decoder": spec}, Limits())[0].decoder, TOY) == expected


@pytest.mark.parametrize(
    ("names", "settings", "expected"),
    [
        (["beam", "greedy"], {"width": 10}, [Beam(10), Greedy()]),
        (["epsilon"], {"samples": 20}, [DECODERS.parse("epsilon(samples=20)")]),
        (["selected"], {"width": 7}, [Selected(Beam(7))]),
        (["beam(width=3)", "beam"], {"width": 10}, [Beam(3), Beam(10)]),
    ],
    ids=str,
)
def test_compare_runs_the_decoders_that_are_named_with_their_options(names, settings, expected):
    assert [*compared_decoders(settings, chosen=names).values()] == expected


def test_compare_fills_in_the_defaults_of_the_model_and_refuses_what_no_decoder_has():
    compared = compared_decoders({"width": 10}, TRANSFORMER, ["beam", "npad(chains=20)"])
    assert [*compared.values()] == [
        Selected(Beam(10), WithCut()),
        npad.NPAD(chains=20, noise=TRANSFORMER.noise, selector=WithCut()),
    ]

    with pytest.raises(npad.InvalidInput, match="--samples does not go with the compared decoders"):
        compared_decoders({"samples": 3}, chosen=["beam"])
    with pytest.raises(npad.InvalidInput, match="which have no options"):
        compared_decoders({"width": 3}, chosen=["greedy"])
