"""Long recordings and messy ones: windows, segments, silence, truncation, subtitles."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from npad import Beam, Greedy, InvalidInput, Special
from npad.hypotheses import Hypothesis
from npad.models.table import TableModel
from npad.pipelines import sound as audio
from npad.pipelines.outputs import Output, Segment, Window
from npad.pipelines.pipeline import Piece, on_decoded
from npad.pipelines.transcription import Timestamps, Transcriber
from npad.pipelines.writers import TRANSCRIPTS
from speech_cases import RATE, saved, tone
from speech_cases import whisper as whisper  # a fixture

SENTENCES = 7
SLOW = 100  # samples per second
FOLLOWING = {90: 10, 10: 1, 1: 60, 60: 0}


def hear(windows):
    """Tell windows apart by their length: each is a sentence of its own."""
    return [len(window) % SENTENCES for window in windows]


def transcriber(timestamps=None):
    model = TableModel.random(5, 4, sentences=SENTENCES, dtype=torch.float64)
    return Transcriber(model, hear, lambda t: " ".join(map(str, t)), SLOW, 2.0, timestamps)


def noises(*seconds):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(int(s * SLOW), generator=generator) - 0.5 for s in seconds]


def test_windows_cover_a_recording_in_order():
    (output,) = transcriber().stream(noises(9.3), Greedy())
    windows = output.windows
    assert windows[0].start == 0
    assert windows[-1].end == 9.3
    assert all(a.end == b.start for a, b in pairwise(windows))
    assert all(0 < w.end - w.start <= 2 for w in windows)


def test_batches_cross_recordings_and_have_at_most_sixteen_windows():
    read, sizes = [], []
    heard = replace(transcriber(), hear=lambda b: sizes.append(len(b)) or hear(b))
    files = (read.append(1) or recording for recording in noises(1, 1, 1, 1, 1))
    stream = heard.stream(files, Greedy(), max_rows=2)
    next(stream)
    assert len(read) == 2  # not all five
    assert len(list(stream)) == 4
    assert sizes == [2, 2, 1]
    sizes.clear()
    list(heard.stream(noises(80.0), Greedy(), max_rows=256))
    assert sum(sizes) >= 40
    assert max(sizes) == 16


def test_a_recording_is_finished_if_all_of_its_windows_are():
    """Its log-probability is their sum, and its progress is in seconds."""
    heard, seconds = transcriber(), []
    outcomes = [Output("a", -1.0, Hypothesis((k,), -k, finished=k < 3), "") for k in (1, 2, 3)]
    pieces = [Piece(None, 0, outcome=outcome) for outcome in outcomes]
    for count in (2, 3):
        joined = heard._joined(pieces[:count], "greedy")
        assert joined.hypothesis == Hypothesis(
            (1, 2, 3)[:count], -sum((1, 2, 3)[:count]), count < 3
        )
        assert joined.log_prob == -count
    with on_decoded(seconds.append):
        heard.transcribe(noises(7.0, 2.0), Greedy())
    assert sum(seconds) == pytest.approx(9, abs=1)


def test_confidence_is_the_mean_of_the_windows_that_have_one_weighted_by_words():
    given = [("a b", 90.0, "s", False), ("c d e", None, "", True), ("", 0.0, "t", False)]
    pieces = [
        Piece(None, 0, outcome=Output(t, -1.0, Hypothesis((), -1.0, True), "", (), c, s, d))
        for t, c, s, d in given
    ]
    for chosen, expected in (
        (pieces, (67.5, "s", True)),
        (pieces[::2], (67.5, "s", False)),
        (pieces[1:2], (None, "", True)),
    ):
        joined = transcriber()._joined(chosen, "greedy")
        assert (joined.confidence, joined.signal, joined.doubtful) == expected


def test_alternatives_are_those_of_a_single_window():
    short, long = transcriber().stream(noises(1, 5), Beam(3, nbest=3))
    assert len(short.windows) == 1
    assert len(short.alternatives) == 2
    assert short.hypothesis is short.windows[0].output.hypothesis
    assert len(long.windows) > 1
    assert long.alternatives == ()


def test_the_defaults_are_whispers():
    heard = Transcriber(transcriber().model, hear, str)
    assert (heard.rate, heard.longest, Timestamps(7).seconds) == (16000, 30.0, 0.02)
    assert [Timestamps(7).last(t) for t in ((), (1,), (1, 57), (57, 1))] == [
        0,
        math.inf,
        1,
        math.inf,
    ]
    for name in ("rate", "longest", "hear"):
        with pytest.raises(InvalidInput, match=f"{name} must be "):
            replace(heard, **{name: 0})


@pytest.mark.parametrize(
    "recording",
    [
        torch.zeros(0),
        torch.zeros(5, 2),
        torch.zeros(5, dtype=torch.long),
        torch.tensor([0.1, math.nan]),
        torch.tensor([0.1, -math.inf]),
        [0.1, 0.2],
        "talk.wav",
    ],
    ids=str,
)
def test_a_recording_is_finite_samples(recording):
    rule = "recording 2 must be a tensor of samples: at least one, real and finite"
    for read in (transcriber().transcribe, lambda found: list(transcriber().stream(iter(found)))):
        with pytest.raises(InvalidInput, match=rule):
            read([*noises(0.5), recording])


def test_silence_is_not_decoded():
    def deaf(windows):
        raise AssertionError("a silent window was decoded")

    heard = Transcriber(transcriber().model, deaf, str, SLOW, 30.0)
    (output,) = heard.stream([torch.zeros(600 * SLOW)])
    assert {w.output.text for w in output.windows} == {""}
    assert output.windows[-1].end == 600
    assert (output.text, output.log_prob, output.segments) == ("", 0.0, ())


def test_a_quiet_voice_is_no_silence():
    voice = 0.005 * tone(200, 1.0, RATE)  # 55 dB below full scale
    assert not audio.is_silent(torch.cat([torch.zeros(RATE * 20), voice]), RATE)
    assert audio.is_silent(0.1 * voice, RATE)
    assert audio.is_silent(torch.zeros(1), RATE)


@pytest.mark.parametrize("width", [1, 7, 50])
def test_running_energy_is_the_mean_square(width):
    (samples,) = noises(0.5)
    expected = samples.double().square().unfold(0, width, 1).mean(1)
    assert torch.allclose(audio.running_energy(samples, width), expected)


# Timestamps: token 100 is 0 seconds, 101 is 0.02 seconds, …


def window(*tokens, start=10.0, end=14.0):
    hypothesis = Hypothesis(tokens, -1.0, finished=True)
    return Window(start, end, Output("unused", -1.0, hypothesis, "greedy"))


@pytest.mark.parametrize(
    ("tokens", "segments"),
    [
        ((100, 1, 2, 150, 160, 3, 200), [(10, 11, "1 2"), (11.2, 12, "3")]),
        ((150, 1, 2), [(11, 14, "1 2")]),  # what is missing is the bound of the window
        ((1, 150, 150, 2), [(10, 11, "1"), (11, 14, "2")]),
        ((100, 1, 1600), [(10, 14, "1")]),
        ((1500, 1, 1600), [(14, 14, "1")]),
        ((100, 150), []),
    ],
)
def test_segments_lie_between_timestamps_and_within_the_window(tokens, segments):
    cut = transcriber(Timestamps(100)).segments(window(*tokens))
    assert [(round(s.start, 3), round(s.end, 3), s.text) for s in cut] == segments


class Impatient:
    """Writes a word, the time of one second, and ends, whatever it hears; 10 is 0 seconds."""

    special, sites = Special(90, 0, 90), {"hidden": 1}

    def start(self, source):
        return torch.zeros(len(source))

    def step(self, state, tokens, perturb=None):
        written = [FOLLOWING.get(token, 0) for token in tokens.tolist()]
        return torch.nn.functional.one_hot(torch.tensor(written), 91) * 30.0, state

    def select(self, state, rows):
        return state[rows]


def test_sound_after_the_last_timestamp_is_transcribed_in_another_window():
    heard = Transcriber(Impatient(), hear, str, SLOW, 30.0, Timestamps(10))
    recordings = noises(3.5, 0.6)
    recordings.append(torch.cat([recordings[0][: 2 * SLOW], torch.zeros(9 * SLOW)]))
    first, short, quiet = heard.stream(recordings, Greedy())
    assert [window[:2] for window in first.windows] == [(0, 1), (1, 2), (2, 3.5)]
    assert [window[:2] for window in short.windows] == [(0, 0.6)]
    assert [window[:2] for window in quiet.windows] == [(0, 1), (1, 11)]
    assert [s[:2] for s in first.segments] == [(0, 1), (1, 2), (2, 3)]


def test_without_timestamps_the_window_is_a_segment():
    given = window(1, 2)
    assert list(transcriber().segments(given)) == [Segment(10, 14, "unused", given.output)]


CUES = (
    Segment(0.0, 1.5, "a --> b", window().output),
    Segment(3661.25, 3662.0, "x <y>\n& z", window().output),
)


def transcribed(form, cues=CUES):
    windows = (Window(0.0, 9.0, window().output),)
    output = Output("", 0.0, window().output.hypothesis, "beam", windows=windows, segments=cues)
    return TRANSCRIPTS[form](0, "a.wav", output, 1)


def test_subtitles_by_hand():
    assert transcribed("srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\na → b\n\n2\n01:01:01,250 --> 01:01:02,000\nx <y> & z\n"
    )
    assert transcribed("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\na → b\n\n"
        "01:01:01.250 --> 01:01:02.000\nx &lt;y> &amp; z\n"
    )
    assert transcribed("vtt", ()) == "WEBVTT\n"


def test_json_is_one_line():
    line = transcribed("json")
    assert line.count("\n") == 1
    content = json.loads(line)
    assert (content["file"], content["duration"], len(content["segments"])) == ("a.wav", 9.0, 2)
    assert content["segments"][1]["start"] == 3661.25
    assert json.loads(transcribed("json", ()))["segments"] == []


# Files as people have them


def arguments(whisper, *more):
    return ("transcribe", "-m", f"hf:{whisper}", "-d", "greedy", "--max-length", 6, *more)


def test_a_mess_of_files_is_transcribed(whisper, tmp_path, npad_here):
    noise = torch.rand(22050, generator=torch.Generator().manual_seed(0)) - 0.5
    stereo = saved(tmp_path / "stereo.wav", noise, 44100, channels=2)
    bits = saved(tmp_path / "bits.wav", noise[:8000], 8000, size=1)
    silence = saved(tmp_path / "silence.wav", torch.zeros(RATE * 5), RATE)
    truncated = saved(tmp_path / "truncated.wav", noise[:16000], RATE)
    truncated.write_bytes(truncated.read_bytes()[:16044])
    done = npad_here(*arguments(whisper, stereo, bits, silence, truncated))
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[2] == ""
    assert all(lines[i] for i in (0, 1, 3))
    assert done.stderr.splitlines() == [
        f"npad: {truncated} ends early: 0.5 of 1.0 seconds are there"
    ]


def test_a_length_that_the_writer_did_not_know_is_no_truncation(tmp_path):
    path = saved(tmp_path / "pipe.wav", torch.zeros(RATE), RATE)
    content = bytearray(path.read_bytes())
    content[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert audio.length(path) == (math.inf, 1.0)
    assert len(audio.read(path, RATE)) == RATE


def test_subtitles_of_several_files_go_to_a_folder(whisper, tmp_path, printed_here, refused_here):
    noise = torch.rand(RATE // 4, generator=torch.Generator().manual_seed(0)) - 0.5
    files = [saved(tmp_path / f"{name}.wav", noise, RATE) for name in "ab"]
    folder = tmp_path / "subtitles"
    folder.mkdir()
    printed_here(*arguments(whisper, *files, "--format", "srt", "-o", folder))
    assert sorted(path.name for path in folder.iterdir()) == ["a.srt", "b.srt"]
    assert (folder / "a.srt").read_text().startswith("1\n00:00:00")
    (folder / "a.wav").write_bytes(files[0].read_bytes())
    model = ("transcribe", "-m", f"hf:{whisper}", "--format")
    one = refused_here(*model, "srt", *files)
    assert (
        one == "srt holds one recording per file, and there are 2; name an existing folder with -o"
    )
    two = refused_here(*model, "vtt", files[0], folder / "a.wav", "-o", folder)
    assert "2 files would be written to" in two
    assert "must be one of" in refused_here(*model, "mp3", *files)


def test_a_bad_file_is_refused_before_any_is_transcribed(tmp_path):
    (tmp_path / "no.wav").write_bytes(b"RIFF\x00\x00\x00\x00WAVE")
    for path, rule in (
        (tmp_path / "no.wav", "is not a WAV file of integer samples"),
        (tmp_path, "cannot read"),
        (tmp_path / "none.wav", "there is no file"),
    ):
        for function in (audio.length, lambda path: audio.read(path, RATE)):
            with pytest.raises(InvalidInput, match=rule):
                function(path)
