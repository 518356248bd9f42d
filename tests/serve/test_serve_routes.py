"""The routes of `npad serve`, on the toy and on the shipped model."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families

import npad
from npad import NPAD, InvalidInput
from npad.cli.options import DEFAULT_MODEL
from npad.hypotheses import Hypothesis
from npad.pipelines.outputs import Output
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.request import decoding_from
from npad.serve.app import OPERATIONS, page_files
from npad.serve.limits import Limits
from npad.serve.metrics import SECONDS, Metrics
from npad.serve.models import Pieces, serve
from npad.serve.options import option_names
from npad.serve.text_routes import _translated, find_model
from serve_cases import serving, toy_model

TEXT = "das ist mir wurst"
FORM = {"Content_Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def client():
    shipped = serve("en-de", npad.load(DEFAULT_MODEL), Limits())
    with serving(shipped, toy_model()) as client:
        yield client


MODELS = {"a": ("en", "de"), "b": ("de", "en"), "c": None, "ear": None}


@pytest.mark.parametrize(
    ("name", "source", "target", "found"),
    [
        *[(None, "en", "de", "a"), (None, "auto", "en", "b"), ("b", "auto", "en", "b")],
        *[("a", "auto", None, "a"), ("c", "auto", None, "c"), ("c", "en", "fr", "c")],
        (None, "auto", None, "target is missing"),
        (None, "fr", "de", "no model translates from 'fr' to 'de'; there are en-de, de-en"),
        ("b", "en", "de", "no model translates from 'en' to 'de'"),
        ("ear", "auto", "en", "no model translates from 'auto' to 'en'"),
        ("x", "en", "de", "there is no model 'x'; there are a, b, c, ear"),
    ],
)
def test_the_first_model_of_two_languages_is_found(name, source, target, found):
    models = {
        key: SimpleNamespace(id=key, languages=pair, hears=key == "ear")
        for key, pair in MODELS.items()
    }
    if found in MODELS:
        assert find_model(models, name, source, target).id == found
    else:
        with pytest.raises(InvalidInput, match=found):
            find_model(models, name, source, target)


def output(text, *others, doubtful=False, confidence=None):
    hypothesis = Hypothesis((1,) if text else (), -1.0, True)
    alternatives = tuple(output(other) for other in others)
    return Output(text, -1.0, hypothesis, "", alternatives, confidence, "s", doubtful)


@pytest.mark.parametrize(
    ("lines", "count", "expected"),
    [
        ([output("a", "b", "c", "d")], 2, {"alternatives": ["b", "c"]}),
        ([output("a", "a", "b"), output("x", "x", "y")], 2, {"alternatives": ["b\ny"]}),
        ([output("a", "b"), output("", "", "y")], 2, {"alternatives": ["b\n"]}),
        ([output("a", confidence=7.0)], 0, {"confidence": 7.0, "signal": "s"}),
        ([output("a", confidence=7.0), output("")], 0, {"confidence": 7.0, "signal": "s"}),
        ([output("a", confidence=7.0), output("b")], 0, {}),
        ([output("a"), output("b", doubtful=True)], 0, {"doubtful": True}),
    ],
)
def test_lines_are_answered_together(lines, count, expected):
    """A confidence is of one line; doubt is of any."""
    one = {"signal": "s"} if sum(bool(line.text) for line in lines) == 1 else {}
    assert _translated(lines, count) == {
        "translatedText": "\n".join(line.text for line in lines),
        "log_prob": -len(lines),
        "confidence": None,
        "signal": None,
        "doubtful": False,
        **one,
        **expected,
    }


PIECES = {1: " 12", 2: " é", 3: " ab", 4: "c", 5: " d e"}


@pytest.mark.parametrize(
    ("pieces", "anchor", "shown"),
    [
        (PIECES, 3, {3: "▁ab", 4: "c", 5: "▁d▁e"}),  # as a token of its own, 5 has no space
        ({1: " 12", 2: " é"}, None, {1: "12", 2: "é"}),
        ({1: "a", 2: "\b"}, 1, {1: "a", 2: "\b"}),  # takes the anchor back
    ],
)
def test_a_token_is_shown_as_it_is_after_a_word(pieces, anchor, shown):
    def detokenise(tokens):
        text = "".join(pieces[token] for token in tokens).strip()
        return text[2:] if text.endswith("\b") and len(text) > 1 else text

    read = Pieces(detokenise)
    assert read.anchor == anchor
    assert read(list(shown)) == list(shown.values())


def test_sources_are_encoded_anywhere_by_npads_own_vocabularies_alone(client):
    toys, shipped = toy_model(), client.service.model("en-de")
    other = serve("other", replace(toys.text, encode=lambda texts: list(texts)), Limits())
    found = [model.encodes_anywhere for model in (toys, shipped, other)]
    assert found == [True, True, False]
    assert toys.source_pieces("das  ist", None) == ["▁das", "▁ist"]
    source = shipped.text.encode(["How are you?"])[0]
    *pieces, end = shipped.source_pieces("How are you?", source)
    assert ("".join(pieces).replace("▁", " ").strip(), end) == ("How are you?", "</s>")


CASES = [
    *({"decoder": name} for name in DECODERS.kinds if name not in ("exact", "shared-sampling")),
    {"decoder": "exact", "budget": 200},
    {"decoder": "beam", "width": 4, "nbest": 3},
    {"chains": 8, "sigma": 0.7, "seed": 1},
    {"chains": 5, "inner": "beam", "width": 2, "candidates": "all"},
    {"chains": 6, "selector": "mbr"},
    {"chains": 4, "selector": "gnmt-length(beta=0.2)"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_decode_and_stream_answer_what_the_library_does(client, options):
    """With every decoder of the registry."""
    text, translator = "How are you?", npad.load(DEFAULT_MODEL)
    asked = {"text": text, **options}
    content = client.post("/v1/decode", asked).json
    (result,) = content["results"]
    plain = {name: str(value) for name, value in options.items()}
    defaults = Defaults.of(translator.model)
    decoder = decoding_from(plain, defaults, default="npad").decoder
    with npad.count_calls() as calls:
        (expected,) = translator.translate([text], decoder)
    assert content["signature"] == expected.signature
    assert 0 <= content["seconds"] < 600
    assert result["text"] == expected.text
    assert math.isclose(result["log_prob"], expected.log_prob, rel_tol=1e-5)
    assert result["proven"] == expected.hypothesis.proven
    texts = [expected.text, *(other.text for other in expected.alternatives)][:10]
    assert [hypothesis["text"] for hypothesis in result["hypotheses"]] == texts
    assert result["calls"]["search"] == calls.search
    prefixes = result["calls"]["rescoring"]  # read once; the machine may read some again
    assert prefixes <= calls.rescoring
    assert (prefixes > 0) == (calls.rescoring > 0)
    *_, last = events = client.stream(**asked)
    done, names = last.data, [event.name for event in events]
    assert (names[0], names[-1], names.count("done")) == ("start", "done", 1)
    assert (done["text"], done["signature"]) == (expected.text, expected.signature)
    assert math.isclose(done["log_prob"], expected.log_prob, rel_tol=1e-5)
    assert done["complete"]
    assert [event.data["text"] for event in events if event.name == "best"][-1] == done["text"]
    listed = [hypothesis["text"] for hypothesis in done["hypotheses"]]
    distinct = list(dict.fromkeys(texts))
    assert listed[: len(distinct)] == distinct


def test_tokens_are_pieces_with_their_spaces(client):
    answer = client.post("/v1/decode", {"text": "How are you?", "decoder": "greedy"})
    (hypothesis,) = answer.json["results"][0]["hypotheses"]
    assert "".join(hypothesis["tokens"]).replace("▁", " ").strip() == hypothesis["text"]
    assert hypothesis["tokens"][0].startswith("▁")
    toy = client.post("/v1/decode", {"text": TEXT, "model": "toy", "decoder": "greedy"})
    assert toy.json["results"][0]["hypotheses"][0]["tokens"] == ["▁that", "▁is", "▁sausage"]


def test_several_texts_have_several_results(client):
    texts = ["danke", "", "na ja", "danke"]
    answer = client.post("/v1/decode", {"text": texts, "model": "toy", "decoder": "greedy"})
    results = [result["text"] for result in answer.json["results"]]
    assert results == ["thanks", "", "well yes", "thanks"]


def test_score_equals_the_librarys_and_is_null_where_impossible(client):
    pair = {"text": TEXT, "target": "i do not care", "model": "toy"}
    content = client.post("/v1/score", pair).json
    assert math.isclose(content["log_prob"], math.log(0.38 * 0.54 * 0.82), rel_tol=1e-5)
    assert content["tokens"] == ["▁i", "▁do", "▁not", "▁care"]
    probabilities = [0.38, 0.54, 1.0, 0.82, 1.0]
    assert content["token_log_probs"] == pytest.approx(
        [math.log(p) for p in probabilities], abs=1e-5
    )
    shipped = {"text": "How are you?", "target": "Wie geht es dir?"}
    (expected,) = npad.load("en-de").score(["How are you?"], ["Wie geht es dir?"])
    content = client.post("/v1/score", shipped).json
    assert math.isclose(content["log_prob"], expected, rel_tol=1e-5)
    assert math.isclose(sum(content["token_log_probs"]), expected, rel_tol=1e-4)

    impossible = {"text": TEXT, "target": "care", "model": "toy"}
    content = client.post("/v1/score", impossible).json
    assert content["log_prob"] is None
    assert content["token_log_probs"][0] is None


def test_translate_answers_as_libretranslate_does(client):
    beam = npad.load("en-de").translate(["How are you?"])[0]
    content = client.post("/translate", {"q": "How are you?", "source": "en", "target": "de"}).json
    assert content["translatedText"] == beam.text
    assert content["signature"] == beam.signature
    assert math.isclose(content["log_prob"], beam.log_prob, rel_tol=1e-5)
    trust = {"confidence", "signal", "doubtful"}
    assert set(content) == {"translatedText", "log_prob", "signature", *trust}


def test_translate_takes_forms_lists_alternatives_and_decoders(client):
    form = urlencode({"q": "danke", "source": "de", "target": "en", "alternatives": 2}).encode()
    content = client.post("/translate", form, **FORM).json
    assert content["translatedText"] == "thanks"
    assert content["alternatives"] == ["i see", "thanks to me"]
    several = {"q": ["danke", "na ja\n\ndanke"], "source": "auto", "target": "en"}
    content = client.post("/translate", several).json
    assert content["translatedText"] == ["thanks", "well yes\n\nthanks"]
    assert content["detectedLanguage"][0] == {"language": "de", "confidence": 0.0}
    assert len(content["log_prob"]) == 2

    asked = {"q": "How are you?", "target": "de", "decoder": "npad", "chains": 6, "seed": 2}
    content = client.post("/translate", asked).json
    decoder = NPAD(chains=6, seed=2)
    assert content["signature"] == npad.signature(decoder, npad.load("en-de").model)


def test_languages_are_those_of_the_models(client):
    assert client.get("/languages").json == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]


def test_a_language_that_is_only_written_has_no_targets():
    translator = replace(toy_model().text, languages=("de", "xx"))
    with serving(serve("a", translator, Limits()), serve("b", translator, Limits())) as client:
        german, other = client.get("/languages").json
    assert german == {"code": "de", "name": "German", "targets": ["xx"]}
    assert other == {"code": "xx", "name": "xx", "targets": []}


def test_what_a_model_or_a_route_does_not_do_is_refused(client):
    with serving(serve("mute", replace(toy_model().text, tokenise=None), Limits())) as mute:
        answer = mute.post("/v1/score", {"text": "danke", "target": "thanks"})
    assert (answer.status, answer.error.partition(":")[0]) == (400, "mute cannot score texts")
    asked = "text=danke&model=toy&min_confidence=5&fallback_decoder=beam"
    assert "without fallback_decoder" in client.get(f"/v1/decode/stream?{asked}").error
    with pytest.raises(InvalidInput, match="eye reads pictures, for which the server has no route"):
        serve("eye", SimpleNamespace(medium="picture"), Limits())


def test_models_list_their_options(client):
    shipped, toy = client.get("/v1/models").json["data"]
    assert (shipped["id"], toy["id"]) == ("en-de", "toy")
    assert (shipped["source"], shipped["target"]) == ("en", "de")
    assert shipped["sites"]["hidden"] == 512
    assert shipped["defaults"]["chains"] == 50
    assert not shipped["hears"]
    assert "1/t" in shipped["schedules"]


def test_openapi_describes_every_operation_and_option(client):
    assert client.get("/health").json == {"status": "ok", "version": npad.__version__}
    document = client.get("/openapi.json").json
    assert document["openapi"].startswith("3.")
    described = {(m.upper(), path) for path, ms in document["paths"].items() for m in ms}
    assert described == {(known.method, known.path) for known in OPERATIONS}
    assert all(known["summary"] for known in document["paths"]["/languages"].values())
    body = document["paths"]["/v1/decode"]["post"]["requestBody"]["content"]["application/json"]
    properties = body["schema"]["properties"]
    assert set(option_names()) <= set(properties)
    assert (properties["chains"]["type"], properties["chains"]["minimum"]) == ("integer", 1)
    assert properties["text"]["oneOf"][0] == {"type": "string", "minLength": 1}
    assert properties["finish"]["enum"] == ["shrink", "compete", "pool"]
    stream = document["paths"]["/v1/decode/stream"]["get"]["parameters"]
    assert [parameter["name"] for parameter in stream if parameter["required"]] == ["text"]


def test_metrics_count_what_was_answered(client):
    client.post("/v1/decode", {"text": "danke", "model": "toy", "decoder": "greedy"})
    client.post("/v1/decode", {"text": ""})
    client.get("/nowhere")
    counted = counters(client.get("/metrics").body)
    assert counted["npad_requests_total", "/v1/decode", "200"] >= 1
    assert counted["npad_requests_total", "/v1/decode", "400"] >= 1
    assert counted["npad_requests_total", "other", "404"] >= 1
    assert counted["npad_model_calls_total", "search", "toy"] >= 2
    assert counted["npad_batches_total", "toy"] == counted["npad_batched_requests_total", "toy"] > 0
    assert counted["npad_queue_length", "toy"] == 0
    assert counted["npad_request_seconds_sum", "/v1/decode"] < 600
    assert counted["process_resident_memory_bytes",] > 1e7
    count = counted["npad_request_seconds_count", "/v1/decode"]
    assert counted["npad_request_seconds_bucket", "+Inf", "/v1/decode"] == count


def counters(text: bytes) -> dict[tuple[str, ...], float]:
    """The samples of Prometheus' text by name and by the values of their labels, sorted by name."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_bucket_holds_its_upper_bound():
    metrics = Metrics({})
    assert metrics.in_progress == 0
    for seconds in (0.1, 0.1001, 31.0):
        metrics.answered("/", 200, seconds)
    counted = counters(metrics.render())
    buckets = {bound: counted["npad_request_seconds_bucket", str(bound), "/"] for bound in SECONDS}
    assert buckets == {0.01: 0, 0.03: 0, 0.1: 1, 0.3: 2, 1.0: 2, 3.0: 2, 10.0: 2, 30.0: 2}


def test_every_answer_has_security_headers(client):
    for path in ("/health", "/nowhere", "/v1/models"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_confidence_is_that_of_the_translator():
    model = toy_model()
    with serving(model) as client:
        translation = {"q": "danke", "target": "en"}
        assert client.post("/translate", translation).json["confidence"] is None
        assert not client.get("/v1/models").json["data"][0]["confidence"]
        object.__setattr__(model.pipeline, "confidence", lambda h: 10.123 * len(h.tokens))
        assert client.get("/v1/models").json["data"][0]["confidence"]
        for text, confidence in (("danke", 10.12), ("danke\n", 10.12), ("danke\nna ja", None)):
            assert (
                client.post("/translate", translation | {"q": text}).json["confidence"]
                == confidence
            )
        decoded = client.post("/v1/decode", {"text": "danke", "decoder": "greedy"}).json
        assert decoded["results"][0]["confidence"] == 10.12
        scored = client.post("/v1/score", {"text": "danke", "target": "thanks to me"}).json
        assert scored["confidence"] == 30.37
        assert client.stream(text="danke", chains=2)[-1].data["confidence"] == 10.12
        doubting = {"text": "danke", "decoder": "greedy", "min_confidence": 50}
        (marked,) = client.post("/v1/decode", doubting).json["results"]
        assert (marked["doubtful"], marked["signal"]) == (True, "log-prob-per-token")
        assert client.stream(**doubting)[-1].data["doubtful"]
        again = doubting | {"fallback_decoder": "beam(width=3,nbest=3)"}
        (second,) = client.post("/v1/decode", again).json["results"]
        assert len(second["hypotheses"]) > len(marked["hypotheses"])
        assert second["calls"]["search"] > marked["calls"]["search"]
        for options, rule in (
            ({"fallback_decoder": "beam"}, "fallback_decoder needs min_confidence"),
            (again | {"fallback_decoder": "beam(width=99999)"}, "must be at most"),
            (again | {"fallback_decoder": "sampling(samples=9,)x"}, "must be one of"),
            ({"decoder": "npad(selector=vote(answer=a))"}, "a pattern, which this server does not"),
        ):
            refused = client.post("/v1/decode", {"text": "danke"} | options)
            assert (refused.status, rule in refused.error) == (400, True), refused.error


def test_files_of_the_page_are_those_of_known_types(tmp_path):
    for name in ("index.html", "a.js", "folder.js/b.css", "c.bak"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    paths = ["/", "/static/a.js", "/static/folder.js/b.css", "/static/index.html"]
    assert sorted(page_files(tmp_path)) == paths


@pytest.mark.parametrize(
    ("asked", "outputs"),
    [
        ({"prefix": "Der Rech"}, ["Der Rechner ist kaputt."]),
        ({"constraint": {"terms": {"computer": "Rechner"}}}, ["Der Rechner ist kaputt."]),
        ({"constraint": {"choices": ["Ja.", "Nein."]}}, ["Ja.", "Nein."]),
        ({"constraint": {"without": "Computer", "regex": "D[a-z]+ C[a-z]+"}}, None),
    ],
    ids=str,
)
def test_constraints_are_those_of_the_library(client, asked, outputs):
    asked = {"text": "The computer is broken.", "decoder": "beam", **asked}
    content = client.post("/v1/decode", asked).json
    (result,) = content["results"]
    assert outputs is None or result["text"] in outputs
    assert ("constraint" in asked) == ("|constraint:" in content["signature"])


def test_an_output_that_lacks_a_required_phrase_is_marked(client):
    asked = {"text": "The computer is broken.", "constraint": {"with": "Rechner"}}
    for decoder in ("greedy", "beam"):
        (result,) = client.post("/v1/decode", {**asked, "decoder": decoder}).json["results"]
        for marked in (result, *result["hypotheses"]):
            assert marked.get("met", True) == ("Rechner" in marked["text"]) == (decoder == "beam")


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"choices": ["x"] * 10_001}, "at most 10,000 texts"),
        ({"without": ["x" * 201]}, "200 characters at most"),
        ({"withuot": ["x"]}, "did you mean without?"),
        ({"without": 3}, "must be a text, or a list"),
        ({"terms": {"computer": 3}}, "must be a text, or a list"),
        ("without(x)", "must be a JSON object"),
        ({"choices": ["Ein sehr langer Satz, der nicht in drei Token passt."]}, "finds no output"),
    ],
)
def test_constraints_have_limits(client, constraint, message):
    asked = {"text": "Hello.", "constraint": constraint, "max_length": 3}
    answer = client.post("/v1/decode", asked)
    assert answer.status == 400
    assert message in answer.json["error"]
