"""Decoders from the options of a request: every one of the registry, within the server's limits."""

from __future__ import annotations

import pytest

from npad import NPAD, Beam, InvalidInput, Noise, Sampling
from npad.models import toy
from npad.search.registry import DECODERS
from npad.serve.limits import Limits
from npad.serve.options import (
    ACTIONS,
    constraint_for,
    decoder_options,
    decoding_for,
    offered,
    option_names,
    option_schemas,
    resolved,
)

MODEL, LIMITS = toy.model(), Limits()
NESTED = [
    {"inner": "beam", "width": 3, "selector": "gnmt-length(alpha=0.5,beta=0.0)"},
    {"decoder": "beam", "selector": "length-normalised", "width": 3},
    {"sigma": [0, 0.5], "chains": 2, "schedule": "cosine(steps=9)", "relative": True},
    {"decoder": "best-of", "decoders": ["greedy", "beam(width=2)"]},
    {"inner": "epsilon(samples=2)", "chains": 3, "seed": 7},
    {"inner": "sampling(samples=2,seed=3)", "chains": 3, "seed": 7},
    {"min_confidence": 60, "nbest": 3},
]


def decoder_of(options):
    return decoding_for(MODEL, options, LIMITS)[0].decoder


@pytest.mark.parametrize(
    ("options", "decoder"),
    [
        ({}, NPAD()),
        ({"decoder": "beam", "width": "3", "nbest": "2"}, Beam(3, nbest=2)),
        ({"decoder": "sampling", "temperature": "0.5", "seed": 7}, Sampling(50, 0.5, seed=7)),
        ({"chains": "5", "sigma": "0.5", "seed": "3"}, NPAD(chains=5, noise=Noise(0.5), seed=3)),
        ({"inner": "sampling", "seed": 4, "samples": 1}, NPAD(Sampling(1, seed=4), seed=4)),
        ({"sigma": [0, 0.1], "chains": 2}, NPAD(chains=2, noise=Noise((0, 0.1)))),
        ({"sigma": "0,0.1", "chains": 2}, NPAD(chains=2, noise=Noise((0.0, 0.1)))),
        ({"noise": "uniform"}, decoder_of({"distribution": "uniform"})),
        ({"chains": None}, NPAD()),
    ],
    ids=str,
)
def test_options_of_json_and_of_a_query_describe_a_decoder(options, decoder):
    assert decoder_of(options) == decoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 3}, "width does not go with"),
        ({"decoder": "greedy", "seed": 3}, "seed does not go with decoder greedy"),
        ({"widht": 3}, "there is no option 'widht'"),
        ({"max_rows": 3}, "there is no option 'max_rows'"),
        ({"sigma": "much"}, "sigma must be a number"),
        ({"sigma": [[1]]}, "sigma"),
        ({"chains": 10**9}, "must be at most 1,024 on this server, not 1,000,000,000"),
        ({"chains": 10**30}, "chains must be a whole number of at most"),
        ({"chains": 100, "inner": "beam", "width": 100}, "must be at most 1,024"),
        ({"decoder": "best-of", "decoders": "sampling(samples=1000),beam(width=99)"}, "at most"),
        ({"chains": 300, "selector": "mbr"}, "must be at most 256 with the selectors mbr"),
        ({"chains": 300, "selector": "model-mbr"}, "must be at most 256 with the selectors mbr"),
        ({"decoder": "exact", "budget": 10**9}, "budget must be a whole number of at most 100000"),
        ({"max_length": 10**6}, "max_length must be a whole number of at most 500"),
        ({"decoder": "beam", "nbest": 6}, "nbest must be at most the width"),
        ({"schedule": 3}, "schedule must be"),
        ({"chains": {"a": 1}}, "chains must be a number or a text, not {'a': 1}"),
        ({"selector": "with-cut(" * 200}, "selector must have at most 100 characters"),
        ({"relative": "perhaps"}, "relative must be true or false"),
        ({"sigma": 0.3, "site": "cell"}, "no noise site 'cell'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_break_a_rule_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        decoding_for(MODEL, options, LIMITS)
    assert len(str(refused.value)) < 900
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("selector", "most"), [("most-probable", 1024), ("mbr", 256), ("model-mbr", 256)]
)
def test_so_many_rows_are_allowed(selector, most):
    decoder_of({"chains": most, "selector": selector})
    with pytest.raises(InvalidInput, match=f"must be at most {most:,}"):
        decoder_of({"chains": most + 1, "selector": selector})


def test_parts_are_resolved_by_name():
    asked = {"selector": "mbr", "inner": "beam(width=3)", "schedule": "cosine(steps=9)"}
    values = resolved(*decoding_for(MODEL, asked, LIMITS))
    assert values["selector"] == "mbr"
    assert (values["inner"], values["width"]) == ("beam", 3)
    assert (values["schedule"], values["distribution"]) == ("cosine(steps=9)", "gaussian")


def test_yes_and_no_have_three_spellings():
    for value in ("true", "Yes", "1", "false", "No", "0"):
        noise = decoder_of({"sigma": 0.3, "relative": value}).noise
        assert noise.relative == (value in ("true", "Yes", "1"))


@pytest.mark.parametrize("options", [*({"decoder": name} for name in DECODERS.kinds), *NESTED])
def test_resolved_options_describe_the_same_request(options):
    request = decoding_for(MODEL, options, LIMITS)
    assert decoding_for(MODEL, resolved(*request), LIMITS) == request


BOUNDED = {"minimum": 0, "maximum": 0, "exclusiveMinimum": 1e-9, "exclusiveMaximum": -1e-9}


def test_schemas_state_types_bounds_and_the_defaults_of_decoders():
    schemas = option_schemas(Limits(rows=7, max_length=9))
    values = [
        {name: value for name, value in schemas[option].items() if name != "description"}
        for option in ("max_length", "nbest", "min_confidence", "fallback_decoder", "decoder")
    ]
    assert values == [
        {"type": "integer", "minimum": 1, "maximum": 9, "default": 9},
        {"type": "integer", "minimum": 1, "maximum": 7},
        {"type": "number", "minimum": 0, "maximum": 100},
        {"type": "string"},
        {"type": "string", "default": "npad"},
    ]
    kinds = {"relative": "boolean", "top_k": "integer", "top_p": "number", "finish": "string"}
    assert {name: schemas[name]["type"] for name in kinds} == kinds
    assert schemas["finish"]["enum"] == ["shrink", "compete", "pool"]
    assert option_schemas(LIMITS)["max_length"]["default"] == 200
    stated = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    stated |= {"nbest": 10, "max_length": 200, "sigma": 0.3, "top_k": None, "top_p": None}
    assert offered(MODEL)["defaults"] == stated


@pytest.mark.parametrize("name", decoder_options())
def test_values_at_the_bounds_of_a_schema_are_accepted_and_values_beyond_are_not(name):
    schema = option_schemas(LIMITS)[name]
    decoder = next(kind for kind, names in offered(MODEL)["options"].items() if name in names)
    for bound, inside in BOUNDED.items():
        if bound in schema:
            step = (1 if "inimum" in bound else -1) * (1 if schema["type"] == "integer" else 1e-9)
            values = schema[bound] + inside, schema[bound] + inside - step
            if isinstance(schema.get("default"), list):
                values = [values[0]], [values[1]]
            decoding_for(MODEL, {"decoder": decoder, name: values[0]}, LIMITS)
            with pytest.raises(InvalidInput, match=name):
                decoding_for(MODEL, {"decoder": decoder, name: values[1]}, LIMITS)


@pytest.mark.parametrize(
    ("name", "most", "longest"),
    [("choices", 2, 3), ("without", 1, 3), ("regex", 1, 5)],
)
def test_constraints_have_at_most_so_many_texts_of_so_many_characters(name, most, longest):
    limits = Limits(choices=2, phrases=1, phrase_characters=3, characters=5)
    texts = ["a" * longest, "b" * longest][:most]
    constraint_for({name: texts}, limits)
    for refused, message in [
        ([*texts, "c"], f"at most {most} texts"),
        ([*texts[1:], "a" * (longest + 1)], f"{longest} characters at most"),
        ([3], "must be a text"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            constraint_for({name: refused}, limits)


def test_every_part_that_a_model_offers_is_accepted():
    shown = offered(MODEL)
    for name, option in [
        ("schedules", "schedule"),
        ("distributions", "distribution"),
        ("selectors", "selector"),
        ("inners", "inner"),
    ]:
        for part in shown[name]:
            budget = {"budget": 100} if part == "exact" else {}
            decoding_for(MODEL, {option: part, "chains": 2, "relative": True} | budget, LIMITS)
    names = {name for listed in shown["options"].values() for name in listed}
    assert names | {"decoder", "nbest", "max_length", *ACTIONS} == set(option_names())
    assert set(shown["defaults"]) <= set(option_names())
    defaults = shown["defaults"]
    assert (defaults["decoder"], defaults["sigma"], defaults["samples"]) == ("npad", 0.3, 50)
