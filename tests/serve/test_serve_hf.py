"""Models of Hugging Face behind the server, tiny and random."""

from __future__ import annotations

import math

import pytest

from hf_cases import save
from npad import load
from npad.serve.limits import Limits
from npad.serve.models import public_name, serve
from serve_cases import post_recording, serving, wav
from speech_cases import whisper as whisper


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_text_model_is_decoded_streamed_and_scored(tmp_path, kind):
    save(tmp_path / kind, kind)
    name = f"hf:{tmp_path / kind}"
    served = serve(public_name(name), load(name), Limits())
    assert served.id == f"hf:{kind}"
    with serving(served) as client:
        asked = {"text": "w5 w6", "max_length": 6, "chains": 5}
        (result,) = client.post("/v1/decode", asked).json["results"]
        events = client.stream(**asked)
        assert events[0].data["source"] == ["▁w5", "▁w6"]
        assert events[0].data["options"]["relative"]
        done = events[-1].data
        assert done["text"] == result["text"]
        assert math.isclose(done["log_prob"], result["log_prob"], abs_tol=1e-4)
        for chain in (event.data for event in events if event.name == "chain"):
            assert chain["noise"] is None
            assert math.isclose(sum(chain["token_log_probs"]), chain["log_prob"], abs_tol=1e-3)
        pair = {"text": "w5 w6", "target": "w7 w8"}
        (expected,) = load(name).score(["w5 w6"], ["w7 w8"])
        scored = client.post("/v1/score", pair).json
        assert math.isclose(scored["log_prob"], expected, abs_tol=1e-4)
        assert math.isclose(sum(scored["token_log_probs"]), expected, abs_tol=1e-3)


def test_a_whisper_model_is_served(whisper):
    name = f"hf:{whisper}"
    served = serve(public_name(name), load(name), Limits())
    with serving(served) as client:
        (model,) = client.get("/v1/models").json["data"]
        assert model["hears"]
        answer = post_recording(
            client, wav(rate=16000), max_length="5", response_format="verbose_json"
        )
        assert answer.status == 200, answer.body
        assert answer.json["duration"] == 0.5
        texts = [segment["text"] for segment in answer.json["segments"]]
        assert " ".join(texts) == answer.json["text"]
