"""OpenAI's Whisper tiny.en on real recordings; `make test-real` fetches it and runs these.

NPAD_WHISPER_DIR is a folder that `npad fetch whisper-tiny.en` wrote. NPAD_LIBRIVOX_DIR is
test/data/librivox of the source of pocketsphinx: five recordings, and a file of transcripts.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.pipelines import sound as audio
from npad.pipelines.fetching import is_complete
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from plain import edits
from runs import ROOT

WHISPER = os.environ.get("NPAD_WHISPER_DIR")
LIBRIVOX = os.environ.get("NPAD_LIBRIVOX_DIR")
pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not WHISPER, reason="NPAD_WHISPER_DIR names no folder of Whisper"),
]
with_speech = pytest.mark.skipif(not LIBRIVOX, reason="NPAD_LIBRIVOX_DIR names no recordings")
NOISY = NPAD(Greedy(), 5, Noise(0.5, relative=True))
SPELLINGS = {"mister": "mr"}


@pytest.fixture(scope="module")
def heard():
    torch.set_num_threads(2)
    return load_as(Transcriber, f"hf:{WHISPER}")


@pytest.fixture(scope="module")
def speech(heard):
    """Recordings and their transcripts."""
    folder = Path(str(LIBRIVOX))
    lines = (folder / "transcription").read_text().splitlines()
    found = [re.fullmatch(r"<s> (.*) </s> \((.*)\)", line) for line in lines]
    return [
        (audio.read(folder / f"{match[2]}.wav", heard.rate), match[1]) for match in found if match
    ]


def words(text: str) -> list[str]:
    plain = re.sub(r"[^a-z' ]", " ", text.lower()).split()
    return [SPELLINGS.get(word, word) for word in plain]


def test_the_folder_is_complete():
    assert is_complete(Path(str(WHISPER)), "whisper-tiny.en")


def test_suppressed_tokens_are_those_that_openai_published(heard):
    config = heard.model.model.model.generation_config
    assert (config.eos_token_id, config.no_timestamps_token_id) == (50256, 50362)
    assert heard.model.model.decoder_prefix == [50257, 50362]
    assert config.begin_suppress_tokens == [220, 50256]
    assert len(config.suppress_tokens) == 90
    written = ",".join(map(str, config.suppress_tokens)).encode()
    assert hashlib.sha256(written).hexdigest()[:16] == "f084ead54b6826d0"


@with_speech
def test_greedy_search_is_generates(heard, speech):
    model = heard.model.model.model
    for recording, _ in speech:
        given = heard.hear([recording])
        theirs = model.generate(
            input_features=given.tensors["input_features"], max_new_tokens=60, do_sample=False
        )[0].tolist()
        ((best,),) = decode(heard.model, given, Greedy(), 60)
        assert [token for token in theirs if token < 50256] == list(best.tokens)


@with_speech
def test_the_guide_shows_what_each_decoder_writes(heard, speech):
    recording = speech[1][0]
    lines = []
    for name, decoder in {"greedy": Greedy(), "beam 5": Beam(5), "NPAD-5": NOISY}.items():
        (piece,) = heard.transcribe([recording], decoder)
        lines.append(f"{name}  {piece.log_prob:.2f}  {piece.text}\n")
    assert "".join(lines) in (ROOT / "docs/huggingface.md").read_text()
    gentle = NPAD(Greedy(), 5, Noise(0.1, relative=True))
    assert heard.transcribe([recording], gentle)[0].text in lines[0]


@with_speech
@pytest.mark.parametrize(
    ("decoder", "wrong"),
    [
        (Greedy(), 3),  # "an old-sposed young man", and a stutter that Whisper leaves out
        (Beam(5), 1),
        (NOISY, 1),
    ],
    ids=["greedy", "beam", "npad"],
)
def test_librivox_is_transcribed(heard, speech, decoder, wrong):
    found = heard.transcribe([recording for recording, _ in speech], decoder)
    texts = [output.text for output in found]
    total = sum(
        edits(words(text), words(expected))
        for text, (_, expected) in zip(texts, speech, strict=True)
    )
    assert total <= wrong, texts


@with_speech
def test_a_long_recording_has_the_words_of_its_parts_and_their_times(heard, speech):
    timed = load_as(Transcriber, f"hf:{WHISPER}", timestamps=True)
    pause = torch.zeros(heard.rate)
    long = torch.cat([part for recording, _ in speech for part in (recording, pause)])
    (output,) = timed.stream([long], Greedy())
    segments = output.segments
    expected = " ".join(text for _, text in speech)
    assert edits(words(output.text), words(expected)) <= 6
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    # Whisper ends a segment where the next begins: after the pause of a second, or soon after.
    end = 0.0
    for recording, _ in speech:
        end += len(recording) / heard.rate
        assert any(abs(segment.end - end) < 1.5 for segment in segments)
        end += 1.0


@with_speech
def test_noise_and_music_leave_a_model_at_peace(heard):
    noise = 0.1 * torch.randn(16000 * 3, generator=torch.Generator().manual_seed(0))
    time = torch.arange(16000 * 3) / 16000
    chord = 0.1 * sum(torch.sin(2 * torch.pi * hertz * time) for hertz in (220, 277, 330))
    found = heard.transcribe([noise, chord], Beam(5))
    assert all(len(words(piece.text)) < 20 for piece in found)
