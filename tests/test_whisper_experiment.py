"""The experiment on speech: strings of digits, resumable decoding, selection and the report."""

from __future__ import annotations

import io
import math
import tarfile

import numpy as np
import pytest
import torch

from npad import InvalidInput
from npad.evaluate.wer import wer
from npad.experiments import whisper as experiment
from npad.experiments.digits import read_takes, utterances, with_noise
from npad.experiments.whisper_report import Results, choose, render, selected, write
from test_transcribe import saved, tone
from test_transcribe import whisper as whisper  # a fixture

RATE = 8000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus like FSDD: two speakers, ten digits, ten takes, each a short tone."""
    folder = tmp_path_factory.mktemp("corpus")
    with tarfile.open(folder / "fsdd.tar.xz", "w:xz") as archive:
        for speaker in ("ada", "bob"):
            for digit in range(10):
                for take in range(10):
                    hertz = 200 + 100 * digit + 7 * take + (50 if speaker == "bob" else 0)
                    path = saved(folder / "a.wav", tone(hertz, 0.02, RATE), RATE)
                    content = path.read_bytes()
                    info = tarfile.TarInfo(f"recordings/{digit}_{speaker}_{take}.wav")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


def test_strings_are_digits_of_one_speaker_and_seeded(corpus):
    takes = read_takes(corpus / "fsdd.tar.xz", range(5), RATE)
    assert {name: len(digits) for name, digits in takes.items()} == {"ada": 10, "bob": 10}
    assert {len(recordings) for digits in takes.values() for recordings in digits.values()} == {5}
    strings = utterances(takes, 60, RATE, seed=1)
    assert {len(string.text.split()) for string in strings} == {3, 4, 5, 6, 7, 8}
    assert {string.speaker for string in strings} == {"ada", "bob"}
    again = utterances(takes, 60, RATE, seed=1)
    assert all(torch.equal(a.samples, b.samples) for a, b in zip(strings, again, strict=True))
    other = utterances(takes, 60, RATE, seed=2)
    assert [string.text for string in other] != [string.text for string in strings]


def test_no_test_take_is_in_the_validation_speech(corpus):
    test, valid = (read_takes(corpus / "fsdd.tar.xz", r, RATE) for r in (range(5), range(5, 10)))
    heard = [r for digits in test.values() for takes in digits.values() for r in takes]
    for digits in valid.values():
        for takes in digits.values():
            assert not any(torch.equal(a, b) for a in takes for b in heard)


@pytest.mark.parametrize("decibels", [20, 0])
def test_noise_has_the_level_it_says(decibels):
    sound = tone(300, 2.0, RATE)
    noise = with_noise(sound, decibels, seed=1) - sound
    ratio = sound.square().mean() / noise.square().mean()
    assert 10 * math.log10(ratio) == pytest.approx(decibels, abs=0.3)


def test_an_archive_that_is_none_is_refused(tmp_path):
    (tmp_path / "fsdd.tar.xz").write_text("no archive")
    with pytest.raises(InvalidInput, match=r"cannot read .*fsdd.tar.xz"):
        read_takes(tmp_path / "fsdd.tar.xz", range(5), RATE)


# Candidates: text, log p, tokens with the end, count, finished
FOUND = [
    ["one two", -1.0, 3, 1, True],
    ["1 2 3 4", -1.2, 5, 1, True],
    ["one two three", -2.0, 4, 5, True],
    ["one", -0.1, 2, 1, False],
]


@pytest.mark.parametrize(
    ("selector", "place"), [("log p", 0), ("length-normalised", 1), ("MBR by WER", 2)]
)
def test_selectors_choose_among_finished_candidates(selector, place):
    assert choose(FOUND, selector) == place
    assert choose(FOUND[3:], selector) == 0


def test_what_is_selected_is_measured():
    record = {"candidates": [FOUND, FOUND], "references": ["one two three", "1 2"]}
    probable = selected(record, "log p")
    assert probable.counts.tolist() == [[1, 3], [0, 2]]
    assert (wer(probable.counts), probable.nll) == (20.0, 1.0)
    assert selected(record, "MBR by WER").nll == 2.0


@pytest.fixture(scope="module")
def ran(whisper, corpus, tmp_path_factory):
    """The experiment on a tiny random Whisper, in two sittings, the first of them killed."""
    out = tmp_path_factory.mktemp("ran") / "hypotheses.jsonl.gz"
    patch = pytest.MonkeyPatch()
    patch.setattr(experiment, "SIGMAS", (0.2, 0.5))
    patch.setattr(experiment, "SITES", ("hidden",))
    patch.setattr(experiment, "MAX_LENGTH", 6)
    patch.setattr(experiment, "DECIBELS", (20, 0))
    arguments = ["--model", f"hf:{whisper}", "--data", str(corpus), "--out", str(out)]
    arguments += ["--device", "cpu", "--test", "3", "--validation", "2", "--seeds", "2"]
    arguments += ["--sizes", "2", "3"]
    with patch.context():
        experiment.main(arguments)
        whole = experiment.read_records(out)
        out.write_bytes(out.read_bytes()[:-200])
        cut = experiment.read_records(out)
        experiment.main(arguments)
    patch.undo()
    return out, whole, cut


def without_time(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def test_a_killed_run_continues_and_ends_the_same(ran):
    out, whole, cut = ran
    assert len(cut) == len(whole) - 1
    assert without_time(experiment.read_records(out)) == without_time(whole)


def test_every_decoder_ran_on_every_set(ran):
    results = Results(ran[1])
    assert results.sets == ["20 dB", "0 dB"]
    assert len(results.calibration) == 4
    by_name = {name for name, *_ in results.systems}
    assert by_name == {"greedy", "beam", "recipe", "sampling", "npad"}
    assert len(results.systems) == 1 + 2 * (3 + 1 + 3 + 3)
    assert {tuple(results.seeds(s)) for s in results.systems if s.name == "npad"} == {(0, 1)}


def test_npad_and_samples_are_never_less_probable_than_greedy_search(ran):
    results = Results(ran[1])
    greedy, *others = [s for s in results.systems if s.selector == "log p"]
    for system in others:
        if system.name in ("sampling", "npad"):
            for on in results.sets:
                before, after = (results.of(s, 0, on).nll for s in (greedy, system))
                assert after <= before + 1e-3 or any(
                    not found[0][4] for found in results.records["greedy", 1, 0, on]["candidates"]
                )


def test_the_sets_of_a_bootstrap_are_strings(ran):
    results = Results(ran[1])
    (counts,) = results.counts(results.systems[0])
    assert len(counts) == 3
    every = [results.of(results.systems[0], 0, on).counts for on in results.sets]
    assert np.array_equal(counts, every[0] + every[1])


def test_the_report_has_a_row_a_system_and_a_plot(ran, tmp_path):
    pytest.importorskip("matplotlib")
    out, whole, _ = ran
    write(out, tmp_path / "report")
    text = (tmp_path / "report/README.md").read_text()
    results = Results(whole)
    for system in results.systems:
        assert text.count(f"| {system} |") == len(results.sets) + 1
    assert (tmp_path / "report/wer.png").stat().st_size > 1000
    again = render(Results(experiment.read_records(tmp_path / "report/hypotheses.jsonl.gz")))
    assert again == text


def test_a_report_needs_results():
    with pytest.raises(InvalidInput, match="run the experiment first"):
        Results([{"about": {}}])
