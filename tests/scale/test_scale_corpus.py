"""Corpora in this process: formats, poisoned lines, continuation, and the command line."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

import npad as package
from cases import Small, one_warning
from damage import limited
from npad import NPAD, Beam, Greedy, InvalidInput, Noise
from npad.scale import (
    Corpus,
    Decoding,
    Distributed,
    Failed,
    Local,
    ModelSpec,
    Translate,
    Unit,
    formats,
    translate_corpus,
)
from npad.scale.corpus import _identity
from npad.scale.worker import Worker, fingerprint
from npad.search.registry import DECODERS
from npad.text import files
from runs import lines

SPEC = ModelSpec("toy", "cpu")
TEXTS = ["danke", "na ja", "", "ich verstehe nur bahnhof", "danke", "das ist mir wurst"] * 3


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in"
    path.write_text("\n".join(TEXTS))  # without a line end at the end
    return path


def expected(decoder, texts=TEXTS):
    return [t.text for t in package.load("toy").translate(texts, decoder)]


BEAM = Beam(3)


def run(source, output, decoder=BEAM, **more):
    changes = {name: more.pop(name) for name in ("field", "on_error") if name in more}
    decoding = Decoding(decoder, more.pop("max_length", 200))
    with Local(SPEC) as workers:
        return translate_corpus(Corpus(source, output, **changes), workers, SPEC, decoding, **more)


def assert_same_translations(actual, expected):
    """The same texts, tokens, chains, counts, signatures; scores to float32's last digits."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        scores = other.log_prob, other.hypothesis.noisy_log_prob
        assert (one.log_prob, one.hypothesis.noisy_log_prob) == pytest.approx(scores, abs=1e-5)
        hypothesis = replace(one.hypothesis, log_prob=other.log_prob, noisy_log_prob=scores[1])
        rest = replace(one, log_prob=scores[0], hypothesis=hypothesis, alternatives=())
        assert rest == replace(other, alternatives=())
        assert_same_translations(one.alternatives, other.alternatives)


NOISY = NPAD(Beam(2), chains=6, noise=Noise(0.4))


@pytest.mark.parametrize(("unit", "parts"), [(1, 1), (4, 1), (None, 1), (4, 2), (5, 6)])
def test_any_division_gives_the_same_output(source, tmp_path, unit, parts):
    """An empty corpus gives an empty output; any other, the same output for every division."""
    (tmp_path / "empty").write_text("")
    assert run(tmp_path / "empty", tmp_path / "out").texts == 0
    assert (tmp_path / "out").read_bytes() == b""
    summary = run(source, tmp_path / "out", NOISY, unit=unit, chain_parts=parts)
    assert lines(tmp_path / "out") == expected(NOISY)
    assert (summary.texts, summary.failed, summary.continued) == (len(TEXTS), 0, 0)
    assert summary.near_ties == 0


@pytest.mark.parametrize(
    ("selector", "parts"), [("mbr", 2), ("length-normalised", 3), ("most-probable", 2)]
)
def test_chains_on_workers_are_npad_in_one_process(selector, parts):
    text = f"npad(chains=6,candidates=all,selector={selector},inner=beam(width=3))"
    decoder = DECODERS.parse(text)
    texts = ["na ja", "", "danke", "ich verstehe nur bahnhof"]
    whole = package.load("toy").translate(texts, decoder)
    with Local(SPEC) as workers:
        results = list(workers.run(texts, Decoding(decoder), 3, parts))
        (cut,) = workers.run(["na ja"], Decoding(decoder), 1, parts, alternatives=1)
    merged = [outcome for result in results for outcome in result.outcomes]
    assert_same_translations(merged, whole)
    assert len(cut.outcomes[0].alternatives) == 1


def test_json_lines_and_lines_of_text_hold_the_same(source, tmp_path):
    records = "".join(json.dumps({"de": text, "n": i}) + "\n" for i, text in enumerate(TEXTS))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    run(tmp_path / "in.jsonl.gz", tmp_path / "out", field="de")
    assert lines(tmp_path / "out") == expected(Beam(3))


BAD = b'{"text": "danke"}\nno json\n{"text": 3}\n[]\n{"text": "\\ud800"}\n\n{"text": "na ja"}\n'


LONG = b"x" * (2**20 + 5)
POISONED = b"danke\n\xff\xfe\nna ja\n" + LONG + b"\nzero\0\n" + b"d" * 500 + b"\ndanke\n"


@pytest.mark.parametrize(
    ("name", "content", "outputs", "reasons"),
    [
        (
            "in.jsonl",
            BAD,
            ["thanks", "", "", "", "", "", "well yes"],
            {2: "", 3: "not a JSON object with a text 'text'", 4: "", 5: "half a surrogate", 6: ""},
        ),
        (
            "in",
            POISONED,
            ["thanks", "", "well yes", "", "", "", "thanks"],
            {2: "not UTF-8", 4: "more than 1,048,576 bytes", 5: "a zero byte", 6: ""},
        ),
    ],
    ids=["json", "text"],
)
def test_poisoned_lines_are_told_by_number_and_do_not_stop_the_rest(
    tmp_path, name, content, outputs, reasons
):
    (tmp_path / name).write_bytes(content)
    reported = {}
    summary = run(tmp_path / name, tmp_path / "out", unit=2, report=reported.__setitem__)
    assert lines(tmp_path / "out") == outputs
    assert (summary.texts, summary.failed) == (7, len(reasons))
    assert list(reported) == list(reasons)
    assert all(reason in reported[line] for line, reason in reasons.items())


def test_with_on_error_fail_the_first_poisoned_line_stops_and_skip_continues(tmp_path):
    (tmp_path / "in").write_bytes(POISONED)
    with pytest.raises(InvalidInput, match=r"line 2: .*not UTF-8.*use --on-error skip"):
        run(tmp_path / "in", tmp_path / "out", unit=1, on_error="fail")
    summary = run(tmp_path / "in", tmp_path / "out", unit=3)
    assert (summary.continued, summary.failed) == (1, 4)
    assert lines(tmp_path / "out")[::2] == ["thanks", "well yes", "", "thanks"]


class Fragile:
    """An `encode` that fails for one text."""

    def __init__(self, encode):
        self.encode = encode

    def __call__(self, texts):
        if any(text.startswith("poison") for text in texts):
            raise ValueError("cannot\nread this")
        return self.encode(texts)


def fragile(spec=SPEC):
    workers = Local(spec)
    workers.start()
    translator = workers.worker.translator
    workers.worker.translator = replace(translator, encode=Fragile(translator.encode))
    return workers


def test_a_text_that_breaks_the_model_fails_alone():
    texts = ("danke", "na ja", "poison", Failed("unread"), "danke")
    (result,) = fragile().map([Unit(0, texts, Decoding(Greedy()))])
    reported = [o.reason if isinstance(o, Failed) else o.text for o in result.outcomes]
    assert reported == ["thanks", "well yes", "ValueError: cannot read this", "unread", "thanks"]


def test_a_setting_that_fails_every_text_stops_at_once(source, tmp_path):
    decoder = NPAD(noise=Noise(0.3, site="nowhere"))
    (tmp_path / "two").write_text("danke\nna ja\n")
    for file in (source, tmp_path / "two"):
        with pytest.raises(InvalidInput, match=r"no text can be translated: .*nowhere"):
            run(file, tmp_path / f"{file.name}.out", decoder, unit=2)


def test_a_later_unit_may_fail_for_one_reason(tmp_path):
    (tmp_path / "in").write_text("danke\nna ja\npoison\npoison too\n")
    with fragile() as workers:
        corpus, decoding = Corpus(tmp_path / "in", tmp_path / "out"), Decoding(Greedy())
        summary = translate_corpus(corpus, workers, SPEC, decoding, unit=2)
    assert (summary.texts, summary.failed) == (4, 2)


def test_memory_that_is_short_halves_units_and_then_fails_the_text():
    worker = Worker(SPEC)
    model = worker.translator.model
    unit = Unit(0, ("danke", "na ja", "danke", "na ja"), Decoding(NPAD(chains=4)))
    with Local(SPEC) as workers:
        workers.worker = worker
        whole = next(workers.map([unit])).outcomes
        worker.translator = replace(worker.translator, model=Small(model, 6))
        with one_warning():
            assert [o.text for o in next(workers.map([unit])).outcomes] == [o.text for o in whole]
        worker.translator = replace(worker.translator, model=Small(model, 0))
        with one_warning():
            outcomes = next(workers.map([unit])).outcomes
    assert all("does not fit in memory" in outcome.reason for outcome in outcomes)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"text": "danke\nanders\n"}, "an input of digest"),
        ({"decoder": Beam(4)}, "the decoder beam"),
        ({"max_length": 7}, "max_length 200, not 7"),
    ],
)
def test_a_changed_input_or_decoder_is_refused(source, tmp_path, change, rule):
    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source, tmp_path / "out", unit=4, progress=stop)
    if "text" in change:
        source.write_text(change.pop("text"))
    with pytest.raises(InvalidInput, match=rule):
        run(source, tmp_path / "out", **change)


def test_a_unit_has_at_least_one_text(source, tmp_path):
    with pytest.raises(InvalidInput, match="unit must be a whole number of at least 1, not 0"):
        run(source, tmp_path / "out", unit=0)


def test_a_changed_model_is_another_one(trained, tmp_path):
    assert fingerprint(str(trained)) == fingerprint(str(trained))
    assert len({fingerprint(str(trained)), fingerprint("en-de"), fingerprint("toy")}) == 3
    with pytest.raises(InvalidInput, match=r"toy on .* is another model"):
        Worker(replace(SPEC, fingerprint=fingerprint("en-de")))
    spec = SPEC.fingerprinted()
    Worker(spec)
    identity = _identity(Corpus(Path(__file__), tmp_path / "out"), spec, Decoding(BEAM, 7))
    assert identity["a model of digest"] == spec.fingerprint == fingerprint(SPEC.model)
    assert (identity["max_length"], identity["the format"]) == ("7", "text, 1 best")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "weights").write_bytes(b"1")
    before = fingerprint(f"hf:{tmp_path / 'hf'}")
    (tmp_path / "hf" / "weights").write_bytes(b"2")
    assert fingerprint(f"hf:{tmp_path / 'hf'}") != before


@pytest.mark.parametrize("by_name", [False, True])
def test_a_corpus_takes_a_decoder_and_limits_as_in_0_2_with_a_warning(source, tmp_path, by_name):
    assert run(source, tmp_path / "new", max_length=9).texts == len(TEXTS)
    corpus, values = Corpus(source, tmp_path / "old"), ("spec", "decoder", "max_length", "max_rows")
    with Local(SPEC) as workers:
        old = {"engine": workers} | dict(zip(values, (SPEC, BEAM, 9, 1024), strict=True))
        with pytest.warns(DeprecationWarning, match="takes workers and a Decoding"):
            translate_corpus(corpus, *(() if by_name else old.values()), **old if by_name else {})
    assert corpus.output.read_bytes() == (tmp_path / "new").read_bytes()


def test_a_translator_on_an_engine_counts_and_translates_as_its_own():
    own = package.load("toy")
    with Local(SPEC) as workers:
        there = Distributed.of(own, workers)
        with package.count_calls() as own_calls:
            expected = own.translate(TEXTS[:5], NOISY)
        with package.count_calls() as calls:
            assert_same_translations(there.translate(TEXTS[:5], NOISY), expected)
        divided = Distributed.of(own, workers, chain_parts=3).caching()
        assert_same_translations(divided.translate(TEXTS[:5], NOISY), expected)
        assert divided.translate(["danke"])[0].text == "thanks"
        with pytest.raises(InvalidInput, match="text 2: "):
            Distributed.of(own, fragile()).translate(["danke", "poison"])
        with pytest.raises(InvalidInput, match="a single text"):
            list(there.stream("danke"))
    assert calls.search > 0
    assert calls.search == pytest.approx(own_calls.search, rel=0.5)  # other batches, other rows


def test_the_class_for_pipelines_adds_its_columns():
    translate = Translate("toy", "npad(chains=3)", column="de", output="en", device="cpu")
    batch = translate({"de": ["danke", None, "na ja"], "line": [7, 8, 9]})
    assert list(batch["en"]) == ["thanks", "", "well yes"]
    assert batch["line"] == [7, 8, 9]
    assert list(batch["en_error"]) == ["", "it is not text", ""]
    assert [score < 0 for score in batch["en_log_prob"]] == [True, False, True]
    with pytest.raises(InvalidInput, match="no column 'de'; it has en"):
        translate({"en": ["a"]})


def command(source, output, *more):
    return ("translate", "-m", "toy", "-i", source, "-o", output, *more)


def test_the_command_writes_what_it_writes_without_an_engine(source, tmp_path, printed_here):
    for end, form in [("text", []), ("moses", ["--nbest", 2]), ("json", ["--json", "--nbest", 2])]:
        for engine in ([], ["--engine", "local", "--window", 4]):
            name = tmp_path / f"{end}{len(engine)}"
            printed_here(*command(source, name, *form, *engine))
        assert lines(tmp_path / f"{end}0") == lines(tmp_path / f"{end}4")
    printed_here(*command(source, tmp_path / "o.jsonl", "--engine", "local"))
    assert [json.loads(line)["id"] for line in lines(tmp_path / "o.jsonl")] == list(range(18))


def test_the_command_reports_lines_and_continues(tmp_path, refused_here, npad_here):
    (tmp_path / "in").write_bytes(POISONED)
    arguments = command(tmp_path / "in", tmp_path / "out", "--engine", "local", "--window", 1)
    line = refused_here(*arguments, "--on-error", "fail")
    assert "line 2" in line
    assert line.endswith("1 texts are finished: the same command continues after them")
    done = npad_here(*arguments, code=1)
    reported = done.stderr.splitlines()
    assert [text.split(":")[1].split()[1] for text in reported[:4]] == list("2456")
    assert reported[4] == "npad: 1 of 7 lines were finished by an earlier run"
    assert reported[5] == "npad: 4 of 7 lines were not translated; they are empty"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--engine", "cloud"], "--engine must be one of 'local', 'processes', 'ray', not 'cloud'"),
        (["--workers", 2], "--workers needs --engine"),
        (["--chain-parts", 2], "--chain-parts needs --engine"),
        (["--engine", "local", "--workers", 2], "--engine local has one worker"),
        (["--engine", "processes", "--address", "auto"], "--address does not go with"),
        (["--engine", "local", "--gpus-per-worker", 1], "--gpus-per-worker does not go with"),
        (["--engine", "local", "--on-error", "stop"], "--on-error must be one of 'skip', 'fail'"),
        (["--engine", "local", "--chain-parts", 2], "2 parts of chains need NPAD"),
    ],
)
def test_options_that_do_not_go_together(source, tmp_path, options, rule, refused_here):
    assert rule in refused_here(*command(source, tmp_path / "out", *options))


def test_an_engine_needs_files(source, refused_here):
    text = ("translate", "-m", "toy", "danke", "--engine", "local")
    assert "give one, and --output" in refused_here(*text)
    device = command("/dev/null", source.parent / "out", "--engine", "local")
    assert "a corpus must be a file" in refused_here(*device)


@pytest.mark.parametrize(
    ("module", "options", "rule"),
    [
        (
            "ray",
            ["--engine", "ray"],
            'Ray 2.60 or later: pip install "ray[data]>=',
        ),
        ("pyarrow", ["--engine", "local"], "Parquet needs pyarrow: pip install pyarrow"),
    ],
)
def test_an_extra_that_is_missing_is_one_line(
    tmp_path, source, module, options, rule, refused_here, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    source = source if module == "ray" else source.rename(tmp_path / "in.parquet")
    line = refused_here(*command(source, tmp_path / "out", *options))
    assert rule in line


def test_evaluate_on_an_engine_measures_the_same(source, tmp_path, printed_here):
    (tmp_path / "ref").write_text("thanks\n" * len(TEXTS))
    arguments = ["evaluate", source, tmp_path / "ref", "-m", "toy", "-d", "npad", "-M", 4, "--json"]
    plain, there = (
        json.loads(printed_here(*arguments, *more))
        for more in ([], ["--engine", "local", "--chain-parts", 2])
    )
    for name in ("nll", "bleu", "chrf", "unique", "signature", "sentences"):
        assert plain[name] == there[name]
    assert there["calls"] > 0


@pytest.mark.parametrize("name", ["in", "in.jsonl", "in.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_a_corpus_is_a_regular_file(tmp_path, name, kind):
    path = tmp_path / name
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "nothing": lambda: None,
    }[kind]()
    with limited(30), pytest.raises(InvalidInput, match=r"; a corpus must be a file$"):
        run(path, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_corpus_without_line_ends_is_no_text(tmp_path, pack):
    path = tmp_path / "in"
    path.write_bytes(pack(b"danke\n" + bytes(files.MAX_SKIPPED_BYTES + 2**21)))
    if pack is bytes:
        os.truncate(path, 1 << 40)  # a sparse file
    rule = "in, line 2 has more than 67,108,864 bytes; this is not a text file"
    with limited(60), pytest.raises(InvalidInput, match=rule):
        run(path, tmp_path / "out")


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("blocks", [b"a\nbb\nccc", b"\n\na", b"a", b"aaaaaaaa\nb"])
def test_texts_are_counted_as_they_are_read(tmp_path, monkeypatch, blocks, end):
    (tmp_path / "in").write_bytes(blocks + end)
    for size in range(1, 12):
        monkeypatch.setattr(formats, "BLOCK_BYTES", size)
        monkeypatch.setattr(formats, "MAX_SKIPPED_BYTES", 8)  # a line of so many is read
        assert formats.count_texts(tmp_path / "in") == len(
            list(formats.read_texts(tmp_path / "in"))
        )
    monkeypatch.setattr(formats, "MAX_SKIPPED_BYTES", 7)
    monkeypatch.setattr(formats, "BLOCK_BYTES", 1)
    if b"a" * 8 in blocks:
        with pytest.raises(InvalidInput, match="line 1 has more than 7 bytes"):
            formats.count_texts(tmp_path / "in")


def test_ray_data_has_the_defaults_of_a_model_and_a_request():
    parameters = signature(Translate.__init__).parameters
    for kind, names in {
        ModelSpec: ("device", "precision", "max_source"),
        Decoding: ("max_length", "max_rows"),
    }.items():
        for name in names:
            assert parameters[name].default == signature(kind).parameters[name].default


def test_a_corpus_is_written_as_lines_of_the_best_by_default(tmp_path):
    assert Corpus(tmp_path / "in", tmp_path / "out").form == "text, 1 best"
    assert Corpus(tmp_path / "in", tmp_path / "out.jsonl", nbest=2).form == "json, 2 best"


BROKEN = ["The computer is broken.", "", "How are you?", "The computer is broken."] * 2
BEGINNINGS = ["Der Rech", "Ja", "", "Das "] * 2


@pytest.mark.parametrize("way", ["file", "tabs", "json"])
@pytest.mark.parametrize("decoder", [Beam(2), NPAD(Greedy(), 4, Noise(0.4))], ids=repr)
def test_workers_give_each_line_its_own_prefix(tmp_path, decoder, way):
    """However the work is divided, and where it was cut off."""
    source, prefixes = tmp_path / "in", tmp_path / "prefixes.txt"
    texts = BROKEN
    if way == "tabs":
        texts = ["\t".join(pair) for pair in zip(BROKEN, BEGINNINGS, strict=True)]
    if way == "json":
        source = tmp_path / "in.jsonl"
        texts = [json.dumps({"text": text}) for text in texts]
        texts[1] = "no json"
    source.write_text("\n".join(texts) + "\n")
    prefixes.write_text("\n".join(BEGINNINGS) + "\n")
    found = package.load("en-de", "cpu").translate(BROKEN, decoder, prefixes=BEGINNINGS)
    spec, given = ModelSpec("en-de", "cpu"), {"tabs": True} if way == "tabs" else {}
    given = given or {"prefixes": prefixes}
    corpus = Corpus(source, tmp_path / "out.jsonl", **given)
    for unit, parts in [(3, 1), (8, 1), *([(3, 2)] if decoder.chains else [])]:
        with Local(spec) as workers:
            translate_corpus(corpus, workers, spec, Decoding(decoder), unit, parts)
        written = [json.loads(line) for line in lines(tmp_path / "out.jsonl")]
        for record, text, output in zip(written, BROKEN, found, strict=True):
            assert record["text"] == output.text
            assert record["source"] == (text if record["source"] else "")
            if text:
                assert record["signature"] == output.signature


def test_other_prefixes_do_not_continue_an_output(tmp_path):
    prefixes = tmp_path / "prefixes"
    corpus = Corpus(tmp_path / "in", tmp_path / "out", prefixes=prefixes)
    for name in ("in", "prefixes"):
        (tmp_path / name).write_text("a\n")
    one = _identity(corpus, SPEC, Decoding(BEAM))
    prefixes.write_text("b\n")
    other = _identity(corpus, SPEC, Decoding(BEAM))
    tabs = _identity(replace(corpus, prefixes=None, tabs=True), SPEC, Decoding(BEAM))
    assert len({identity["the prefixes"] for identity in (one, other, tabs)}) == 3


def test_a_file_of_prefixes_must_have_a_line_for_each_text(tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    (tmp_path / "prefixes").write_text("c\n")
    corpus = Corpus(tmp_path / "in", tmp_path / "out", prefixes=tmp_path / "prefixes")
    with pytest.raises(InvalidInput, match="fewer lines"), Local(SPEC) as workers:
        translate_corpus(corpus, workers, SPEC, Decoding(BEAM))
