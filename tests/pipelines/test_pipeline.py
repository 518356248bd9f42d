"""What holds for texts, recordings and pictures alike: order, batches, memory, progress, noise."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import count, islice

import pytest
import torch

import npad
from cases import Small, one_warning
from media_models import random_model, tone
from npad import (
    NPAD,
    Beam,
    Captioner,
    Greedy,
    InvalidInput,
    Noise,
    Sampling,
    Transcriber,
    Translator,
)
from npad.constraints import Choices
from npad.models.table import TableModel
from npad.noise.random import stable_hash
from npad.pipelines.loading import load_as
from npad.pipelines.pipeline import Piece, Prefixed, on_decoded, prefixed, text_of, with_prefixes
from npad.pipelines.sound import log_mel
from npad.storage import checkpoint
from pipeline_cases import Spied, assert_alike, decoders, sentences, untrained

RATE, SIZE, KINDS = 100, 4, 7


class Looking(Spied):
    """A table whose sentence is chosen by the sum of a picture's pixels."""

    def start(self, source):
        return self.model.start([int(picture.sum()) % KINDS for picture in source])


def table():
    return TableModel.random(5, 4, sentences=KINDS, dtype=torch.float64)


def numbers(tokens):
    return " ".join(map(str, tokens))


def hear(windows):
    """Tell windows apart by their length."""
    return [len(window) % KINDS for window in windows]


def recordings(n):
    """Recordings of one to four windows; a silent one now and then."""
    generator = torch.Generator().manual_seed(0)
    lengths = [50 + 37 * i % 600 for i in range(n)]
    return [
        (torch.rand(length, generator=generator) - 0.5) * (i % 5 != 3)
        for i, length in enumerate(lengths)
    ]


def pictures(n):
    generator = torch.Generator().manual_seed(0)
    shape = (n, 3, SIZE, SIZE)
    return list(torch.randint(0, 256, shape, generator=generator).to(torch.uint8))


MEDIA = {
    "text": (untrained(), sentences),
    "recording": (Transcriber(table(), hear, numbers, RATE, 2.0), recordings),
    "picture": (Captioner(Looking(table(), None), numbers, SIZE), pictures),
}
media = pytest.mark.parametrize(("pipeline", "sources"), MEDIA.values(), ids=MEDIA)
NOISY = [Beam(3), NPAD(Greedy(), 5, Noise(0.5)), Sampling(4)]


@media
@pytest.mark.parametrize("decoder", NOISY, ids=["beam", "npad", "sampling"])
def test_an_output_depends_on_its_source_alone(pipeline, sources, decoder):
    given = sources(12)
    together = pipeline.decode(given, decoder, 8)
    alone = [pipeline.decode([source], decoder, 8)[0] for source in given]
    assert_alike(together, alone)
    assert_alike(pipeline.decode(given[::-1], decoder, 8), together[::-1])
    assert len({output.text for output in together}) > 1


@media
@decoders
@pytest.mark.parametrize(("max_rows", "window"), [(1, None), (6, 1), (12, 7), (40, 5), (40, 1000)])
def test_batches_and_windows_do_not_matter(pipeline, sources, decoder, max_rows, window):
    given = sources(30)
    expected = pipeline.decode(given, decoder, 8)
    assert_alike(pipeline.stream(iter(given), decoder, 8, max_rows, window), expected)


@media
def test_sources_have_the_keyword_of_their_medium(pipeline, sources):
    given, keyword = sources(3), f"{pipeline.medium}s"
    method = {"text": "translate", "recording": "transcribe", "picture": "caption"}[pipeline.medium]
    expected = pipeline.decode(given, Greedy(), 8)
    for name in (method, "stream"):
        outputs = getattr(pipeline, name)(decoder=Greedy(), max_length=8, **{keyword: given})
        assert list(outputs) == expected
    with pytest.raises(TypeError):
        getattr(pipeline, method)(given, **{keyword: given})


@pytest.mark.parametrize("module_name", ["captioning", "transcription"])
def test_load_is_found_in_its_old_modules(module_name):
    old = importlib.import_module(f"npad.pipelines.{module_name}")
    with pytest.warns(DeprecationWarning, match=r"is now npad\.load; the old name will be removed"):
        assert old.load is npad.load
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        old.lode  # noqa: B018


@media
def test_a_batch_that_does_not_fit_is_decoded_in_halves_with_one_warning(pipeline, sources):
    expected = pipeline.decode(sources(30), Beam(2), 8)
    small = replace(pipeline, model=Small(pipeline.model, 9))
    with one_warning():
        found = small.decode(sources(30), Beam(2), 8)
    assert [output.text for output in found] == [output.text for output in expected]


@media
def test_an_endless_stream_is_read_as_it_is_asked_for(pipeline, sources):
    read, given = [], sources(12)
    endless = (read.append(i) or given[i % 12] for i in count())
    stream = pipeline.stream(endless, Greedy(), 8, max_rows=2, window=3)
    assert read == []
    for output in islice(stream, 20):
        assert output.text is not None
    assert len(read) <= 20 + 2 * 3
    stream.close()


@media
def test_progress_adds_up_to_what_was_decoded(pipeline, sources):
    given, sizes = sources(20), []
    with on_decoded(sizes.append):
        outputs = pipeline.decode(given, Greedy(), 8, max_rows=4)
    silent = sum(window.output.hypothesis.tokens == () for o in outputs for window in o.windows)
    seconds = sum(map(len, given)) / RATE if isinstance(pipeline, Transcriber) else None
    total = sum(bool(len(source)) for source in given) if seconds is None else seconds
    assert len(sizes) > 4
    assert total - 2 * silent - len(sizes) / 2 <= sum(sizes) <= total + len(sizes) / 2


@media
@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"detokenise": lambda tokens: 7}, {}, "detokenise must return a text, not 7"),
        ({}, {"max_length": 0}, "max_length must be a whole number of at least 1"),
        ({}, {"max_rows": 0}, "max_rows must be a whole number of at least 1"),
        ({}, {"decoder": Beam}, r"write Beam\(\), not Beam"),
    ],
)
def test_mistakes_are_named(pipeline, sources, change, arguments, message):
    with pytest.raises(InvalidInput, match=message):
        replace(pipeline, **change).decode(sources(2), **arguments)


@media
@pytest.mark.parametrize("wrong", [7, None, torch.zeros(2, 2), [1.0]], ids=str)
def test_values_that_are_no_source_are_refused(pipeline, sources, wrong):
    with pytest.raises(InvalidInput, match=pipeline.medium):
        pipeline.decode([sources(1)[0], wrong], Greedy(), 8)
    with pytest.raises(InvalidInput, match=f"{pipeline.medium}s"):
        pipeline.stream(7)


@pytest.fixture(scope="module", params=["picture", "sound"])
def folder(request, tmp_path_factory):
    """The folder of an untrained npad model."""
    return random_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.mark.parametrize("decoder", [Greedy(), NPAD(Beam(2), 4, Noise(0.5)), Sampling(3, 0.7)])
def test_an_output_is_what_the_model_decodes(folder, decoder):
    pipeline, model = npad.load(folder), checkpoint.load(folder).model
    if isinstance(pipeline, Captioner):
        sources = inputs = list(torch.randint(0, 256, (5, 3, 16, 16)).to(torch.uint8))
    else:
        sources = [tone(*sound, 8000) for sound in ((300, 0.3), (900, 0.7), (2000, 0.5))]
        inputs = [log_mel(samples, 8000, 10) for samples in sources]
    ids = [stable_hash(source.numpy().tobytes()) for source in sources]
    best = [hypotheses[0].tokens for hypotheses in npad.decode(model, inputs, decoder, 9, ids)]
    outputs = pipeline.decode(sources, decoder, 9)
    assert [output.hypothesis.tokens for output in outputs] == best
    assert [output.text for output in outputs] == [pipeline.detokenise(tokens) for tokens in best]
    assert len(set(best)) > 1


KINDS_OF_MODELS = {"text": Translator, "picture": Captioner, "sound": Transcriber}


@pytest.mark.parametrize("reads", KINDS_OF_MODELS)
def test_load_returns_the_pipeline_of_any_model_and_commands_refuse_others(reads, tmp_path):
    folder = "en-de" if reads == "text" else random_model(tmp_path / reads, reads)
    assert type(npad.load(folder)) is KINDS_OF_MODELS[reads]
    for other, kind in KINDS_OF_MODELS.items():
        if other != reads:
            rule = f"is a model of {reads}s, not of {other}s; use it with npad"
            with pytest.raises(InvalidInput, match=rule):
                load_as(kind, folder)


def test_a_line_has_its_prefix_from_another_file_or_after_a_tab():
    read = prefixed(iter(["", "b"]), False)
    assert [read("x"), read("y")] == ["x", Prefixed("y", "b")]
    with pytest.raises(InvalidInput, match="--prefix has fewer lines than there are texts"):
        read("z")
    assert prefixed(None, False)("x\ty") == "x\ty"
    assert [*map(prefixed(None, True), ("x\ty\tz", "x"))] == [Prefixed("x", "y\tz"), "x"]
    assert [text_of("x"), text_of(Prefixed("y", "b"))] == ["x", "y"]
    assert vars(Piece("x")) == vars(Piece("x", 0, 1, False, 0.0, 0.0, None, False, None, ""))
    assert with_prefixes(["x"], ["b"], "text") == [Prefixed("x", "b")]
    with pytest.raises(InvalidInput, match=r"prefixes must be one text per text, 2 in all, not \["):
        with_prefixes(["x", "y"], ["b"], "text")


def test_a_text_without_an_output_under_a_constraint_is_refused_or_skipped():
    translator, asked = npad.load("en-de"), (Greedy(), 3)
    far = Choices(("Ein sehr langer Satz, der nicht in drei Token passt.",))
    with pytest.raises(InvalidInput, match="finds no output"):
        translator.translate(["Hello."], *asked, constraint=far)
    (outcome,) = translator.stream_or_skip(["Hello."], *asked, constraint=far)
    assert isinstance(outcome, InvalidInput)
    with pytest.raises(InvalidInput, match="cannot be constrained: a constraint on texts needs to"):
        npad.load("toy").translate(["danke"], Greedy(), constraint=far)
