"""The stream of a search: its events, their order, and that they repeat exactly."""

from __future__ import annotations

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

import npad
from npad import NPAD, Beam, Noise
from npad.models import toy
from npad.pipelines.pipeline import Prefixed
from npad.pipelines.translation import Translator
from npad.schedules import Adaptive
from npad.serve.limits import Limits
from npad.serve.models import serve
from npad.serve.options import decoding_for
from npad.serve.streaming import noise_norms, stream_of
from serve_cases import Event, serving, toy_model

TEXT = "She spends most of her money on books."
TOY_TEXT = "ich verstehe nur bahnhof"


@pytest.fixture(scope="module")
def shipped():
    return serve("en-de", npad.load("en-de"), Limits())


@pytest.fixture(scope="module")
def client(shipped):
    with serving(shipped, toy_model()) as client:
        yield client


def named(events, name):
    return [event.data for event in events if event.name == name]


def without_seconds(event: Event) -> Event:
    return Event(event.name, {k: v for k, v in event.data.items() if k != "seconds"})


@pytest.mark.parametrize("model", ["en-de", "toy"])
def test_events_keep_their_contract(client, model):
    text = {"en-de": TEXT, "toy": TOY_TEXT}[model]
    events = client.stream(text=text, model=model, chains=10)
    start, done = events[0].data, events[-1].data
    assert start["chains"] == 10
    assert start["options"]["schedule"] == "1/t"
    assert start["source"][0].startswith("▁")
    names = [event.name for event in events]
    assert names[1:3] == ["chain", "best"]  # the clean chain, before any step of the others
    for step in named(events, "step"):
        assert sorted(c for p in step["prefixes"] for c in p["chains"]) == list(range(10))
        assert all(len(p["tokens"]) <= step["t"] for p in step["prefixes"])
        assert all(p["finished"] or len(p["tokens"]) == step["t"] for p in step["prefixes"])
    steps = named(events, "step")
    assert [step["t"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(prefix["finished"] for prefix in steps[-1]["prefixes"])
    chains = named(events, "chain")
    assert [chain["chain"] for chain in chains] == list(range(10))
    for chain in chains:
        assert math.isclose(sum(chain["token_log_probs"]), chain["log_prob"], rel_tol=1e-4)
        assert len(chain["token_log_probs"]) == len(chain["tokens"]) + chain["finished"]
        assert len(chain["noise"]) == len(chain["token_log_probs"])
        assert chain["calls"] == len(chain["token_log_probs"])
        final = [p for p in steps[-1]["prefixes"] if chain["chain"] in p["chains"]]
        assert final[0]["tokens"] == chain["tokens"]
    assert set(chains[0]["noise"]) == {0.0}
    for digits, numbers in ((6, chains[1]["token_log_probs"]), (4, chains[1]["noise"])):
        assert numbers == [round(number, digits) for number in numbers]
    assert all(norm > 0 for norm in chains[1]["noise"])
    bests = [best["log_prob"] for best in named(events, "best")]
    assert bests == sorted(bests)
    calls = [best["calls"] for best in named(events, "best")]
    assert calls == sorted(calls)
    assert calls[0] == chains[0]["calls"]
    shown = Counter(c for h in done["hypotheses"] for c in h["chains"])
    assert set(shown.values()) == {1}
    best = done["hypotheses"][0]
    if model == "toy":
        assert best["attention"] is None
    else:
        assert len(best["attention"]) == len(best["tokens"]) + best["finished"]
        assert all(len(weights) == len(start["source"]) for weights in best["attention"])
        assert all(w == round(w, 4) for weights in best["attention"] for w in weights)
        assert all(abs(sum(weights) - 1) < 0.01 for weights in best["attention"])


def test_the_best_event_names_its_chain(client):
    """With a selector that reads attention as well; here the clean chain is not the best."""
    options = {"chains": 8, "sigma": 1.0, "seed": 3, "selector": "gnmt-length(beta=0.2)"}
    events = client.stream(text=TEXT, **options)
    best, done = named(events, "best")[-1], events[-1].data
    assert best["chain"] in done["hypotheses"][0]["chains"]
    assert best["chain"] != 0


def test_the_noise_shown_is_the_noise_of_the_chain():
    """By a chain decoded from the noisy model itself, whose perturbation is recorded."""
    import torch

    from npad.noise.noisy import Noisy
    from npad.noise.random import stable_hash

    translator = npad.load("en-de")
    decoder, key = NPAD(chains=3, noise=Noise(0.4), seed=5), stable_hash(TEXT)
    (shown,) = noise_norms(decoder, translator.model, key, [2], 2)
    noisy = Noisy(translator.model, decoder.noise, 5)
    norms = []

    class Recording:
        def __init__(self, perturbation):
            self.perturbation = perturbation
            self.scales, self.keys = perturbation.scales, perturbation.keys

        def __call__(self, site, x):
            y = self.perturbation(site, x)
            if site.startswith("hidden"):
                norms.append(float((y - x).norm()))
            return y

    model = translator.model
    step = model.step
    with torch.inference_mode():
        ids, chains, sigma = torch.tensor([key]), torch.tensor([2]), torch.tensor([0.4])
        state = noisy.attach(model.start(translator.encode([TEXT])), ids, chains, sigma)
        try:
            object.__setattr__(model, "step", lambda s, t, p: step(s, t, Recording(p)))
            for token in (model.special.bos, 5):
                _, state = noisy.step(state, torch.tensor([token]))
        finally:
            object.__delattr__(model, "step")
    assert norms == pytest.approx(shown, abs=2e-4)


def test_noise_shown_is_in_proportion_to_the_sigma_of_its_chain():
    """Also without a clean chain, where the first chain is number 1."""
    unit, own = (
        noise_norms(NPAD(chains=3, clean_chain=False, noise=noise), toy.model(), 7, chains, 4)
        for noise, chains in [(Noise(1.0), [2, 3]), (Noise((9.0, 0.2, 0.4)), [2, 3])]
    )
    for sigma, ones, norms in zip((0.2, 0.4), unit, own, strict=True):
        assert norms == pytest.approx([sigma * norm for norm in ones], abs=1e-4)
        assert len(set(norms)) == 4


@pytest.mark.parametrize(
    ("decoder", "steps", "shown"),
    [
        (NPAD(noise=Noise(0.3, relative=True)), 2, False),
        (NPAD(noise=Noise(0.3, Adaptive())), 2, False),
        (NPAD(Beam(2)), 2, False),
        (NPAD(Beam(1)), 2, True),
        (NPAD(), 1, True),
        (NPAD(), 0, False),
    ],
    ids=str,
)
def test_noise_that_depends_on_more_than_its_key_is_not_shown(decoder, steps, shown):
    assert (noise_norms(decoder, toy.model(), 7, [1], steps) is not None) == shown


@pytest.mark.parametrize(
    "options",
    [
        *[{"chains": 9}, {"decoder": "beam", "width": 4}, {"inner": "beam", "chains": 3}],
        {"decoder": "sampling", "samples": 5},
    ],
    ids=str,
)
def test_a_repeated_stream_is_equal_to_the_digit(client, options):
    first, second = (client.stream(text=TEXT, **options) for _ in range(2))
    assert list(map(without_seconds, first)) == list(map(without_seconds, second))

    steps = named(first, "step")
    for step in steps[1:] if options.get("decoder") == "beam" else ():  # its rows, in slots
        assert sorted(c for p in step["prefixes"] for c in p["chains"]) == [0, 1, 2, 3]


def test_streams_are_equal_under_load():
    """Those of a model that has just been loaded, and those among many other requests."""
    texts = [TEXT, "How are you?"]
    with serving(serve("en-de", npad.load("en-de"), Limits())) as client:

        def streamed(number):
            if number % 4 == 3:
                return client.post("/v1/decode", {"text": TEXT, "chains": 9, "seed": number})
            events = client.stream(text=texts[number % 2], chains=20)
            return list(map(without_seconds, events))

        first = [streamed(number) for number in range(2)]
        with ThreadPoolExecutor(16) as clients:
            later = list(clients.map(streamed, range(24)))
    for number, events in enumerate(later):
        assert number % 4 == 3 or events == first[number % 2]


def test_a_deadline_returns_the_chains_that_ended_and_a_beam_has_none(client):
    events = client.stream(text=TEXT, chains=1000, deadline=0)  # milliseconds, deprecated
    done = events[-1].data
    assert not done["complete"]
    assert [chain["chain"] for chain in named(events, "chain")] == [0]
    events = client.stream(text=TEXT, chains=20, seconds=60)
    assert events[-1].data["complete"]
    assert max(step["round"] for step in named(events, "step")) == 3
    assert [chain["chain"] for chain in named(events, "chain")] == list(range(20))
    expected = client.post("/v1/decode", {"text": TEXT, "chains": 20}).json["results"][0]
    assert events[-1].data["text"] == expected["text"]

    events = client.stream(text=TEXT, decoder="beam", seconds=0)
    assert events[-1].name == "error"
    assert "only npad has an answer" in events[-1].data["error"]


def test_tokenizers_are_called_in_the_models_thread():
    """As those of a user's or of Hugging Face: encoded by the model's thread alone."""
    import threading

    threads = set()

    def encode(texts):
        threads.add(threading.current_thread().name)
        return list(texts)

    def detokenise(tokens):
        threads.add(threading.current_thread().name)
        return toy.detokenise(tokens)

    translator = Translator(toy.model(), encode, detokenise, toy.tokenise)
    with serving(serve("mine", translator, Limits())) as client:
        assert client.stream(text="danke", chains=2)[0].name == "start"
        client.post("/v1/decode", {"text": "danke", "chains": 2})
        client.post("/v1/score", {"text": "danke", "target": "thanks"})
        client.post("/translate", {"q": "danke", "model": "mine", "target": "en"})
    assert threads == {"npad mine"}


def reported(model, options, text=TOY_TEXT):
    """The events of a request without a server; the steps of each round in one line."""
    events, lines = [], []
    emit = lambda name, data: events.append(Event(name, data))  # noqa: E731
    stream_of(
        model, Prefixed(text, ""), *decoding_for(model.model, options, Limits()), None, emit
    ).run()
    for name, data in ((event.name, event.data) for event in events):
        calls = data["calls"]
        assert 0 <= data.get("seconds", 0) < 600
        match name:
            case "step":
                line = f"round {data['round']}"
                lines += [] if lines and lines[-1].startswith(line) else [line]
                lines[-1] += f" {data['t']}:{calls}"
            case "chain":
                lines.append(f"chain {data['chain']}: {calls}, {data['noise'] is not None:d}")
            case "best":
                lines.append(f"best {data['chain']} of {data['chains']}: {calls}")
            case "done":
                chains = [hypothesis["chains"] for hypothesis in data["hypotheses"]]
                lines.append(f"done: {calls['search']} + {calls['rescoring']}, {chains}")
    return events, lines


CLEAN = ["chain 0: 5, 1", "best 0 of 1: 5"]
TWO = "round 1 1:6 2:7 3:8 4:9 5:10 6:11 7:12"
CHAINS = [*CLEAN, "round 1 1:7 2:9 3:11 4:13 5:15 6:17 7:19", "chain 1: 7, 1"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"chains": 1}, ["round 0 1:1 2:2 3:3 4:4 5:5", *CLEAN, "done: 5 + 5, [[0]]"]),
        (
            {"chains": 2},
            [*CHAINS[:2], TWO, CHAINS[3], "best 1 of 2: 12", "done: 12 + 12, [[1], [0]]"],
        ),
        (
            {"chains": 3, "nbest": 2},
            [*CHAINS, "best 1 of 2: 12", "chain 2: 5, 1", "done: 19 + 19, [[1], [0]]"],
        ),
        (
            {"chains": 3, "selector": "mbr"},
            [*CHAINS, "chain 2: 5, 1", "done: 19 + 19, [[0], [2], [1]]"],
        ),
        (
            {"decoder": "best-of", "decoders": "greedy,beam(width=2)"},
            [
                *["round 0 1:1 2:2 3:3 4:4 5:5", "round 1 1:6 2:8 3:10 4:12", "chain 0: 12, 0"],
                *["chain 1: 12, 0", "best 0 of 2: 12", "done: 12 + 0, [[0], [1]]"],
            ],
        ),
        (
            {"decoder": "sampling", "samples": 4, "seed": 0, "temperature": 0.5},
            [
                *["round 0 1:1 2:5 3:9 4:13", "chain 0: 13, 0", "chain 1: 13, 0"],
                *["chain 2: 13, 0", "chain 3: 13, 0", "best 0 of 4: 13"],
                "done: 13 + 0, [[0], [1, 2], [3]]",
            ],
        ),
    ],
    ids=str,
)
def test_events_name_rounds_chains_and_model_calls(options, expected):
    events, lines = reported(toy_model(), options)
    assert lines == expected
    last = named(events, "best")[-1]
    done = events[-1].data
    assert {key: last[key] for key in ("text", "log_prob")}.items() <= done.items()
    assert done["text"] == done["hypotheses"][0]["text"]


@pytest.mark.parametrize("options", [{"chains": 4}, {"decoder": "best-of"}], ids=str)
def test_a_window_of_steps_is_shown_step_by_step(shipped, monkeypatch, options):
    """On a GPU the host looks at every eighth step; here, every third."""
    collected = []
    for window in (1, 3):
        monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda _, n=window: n)
        steps = named(reported(shipped, options, TEXT)[0], "step")
        rounds = {step["round"] for step in steps}
        assert rounds == ({1} if "chains" in options else {0, 1})
        collected.append([step["prefixes"] for step in steps if step["round"] == max(rounds)])
    one, three = collected
    assert three[: len(one)] == one
    assert len(one) <= len(three) < len(one) + 3


BROKEN = "The computer is broken."


@pytest.mark.parametrize("decoder", ["npad", "beam", "greedy"])
@pytest.mark.parametrize(
    "asked",
    [{"prefix": "Der Rech"}, {"constraint": {"without-exactly": ["Computer"]}}, {"prefix": "Der "}],
    ids=str,
)
def test_a_stream_takes_a_prefix_and_a_constraint_as_decode_does(client, decoder, asked):
    given = {"text": BROKEN, "decoder": decoder, **asked}
    (expected,) = client.post("/v1/decode", given).json["results"]
    query = {name: json.dumps(x) if name == "constraint" else x for name, x in given.items()}
    events = client.stream(**query)
    done = events[-1].data
    assert events[-1].name == "done"
    assert done["text"] == expected["text"]
    assert done["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)
    assert "|constraint:" in done["signature"]
    prefix, forbidden = asked.get("prefix", ""), "Computer" if "constraint" in asked else "\0"
    for hypothesis in [*done["hypotheses"], *named(events, "chain"), *named(events, "best")]:
        assert hypothesis["text"].startswith(prefix)
        assert forbidden not in hypothesis["text"]


@pytest.mark.parametrize("decoder", ["npad", "beam"])
def test_a_stream_says_that_no_output_satisfies_a_constraint(client, decoder):
    constraint = json.dumps({"choices": ["Ein sehr langer Satz, der nicht in drei Token passt."]})
    asked = {"text": "Hello.", "max_length": 3, "constraint": constraint, "decoder": decoder}
    events = client.stream(**asked)
    assert events[-1].name == "error"
    assert "finds no output" in events[-1].data["error"]
    assert "choices(" in events[-1].data["error"]


def test_a_stream_refuses_a_constraint_that_is_no_json(client):
    answer = client.get(f"/v1/decode/stream?text=Hello.&constraint={quote('{without')}")
    assert answer.status == 400
    assert "must be a JSON object" in answer.json["error"]


def test_models_say_whether_they_can_be_constrained(client):
    models = {model["id"]: model["constrains"] for model in client.get("/v1/models").json["data"]}
    assert models == {"en-de": True, "toy": False}
