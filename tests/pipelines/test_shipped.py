"""The model that ships: small, quick to load, credited, and as good in int8 as it was."""

from __future__ import annotations

import json
import time

import pytest
import torch

import npad
from npad import NPAD, Beam, Greedy, Noise, SteeredSearch
from npad.models.int8 import pack_weights, unpack_weights
from npad.pipelines.names import SHIPPED
from npad.storage import checkpoint
from runs import npad as command

FOLDER = SHIPPED["en-de"]
SENTENCES = {
    "How do I get to the station?": "Wie komme ich zum Bahnhof?",
    "I don't know what to say.": "Ich weiß nicht, was ich sagen soll.",
    "Where is the library?": "Wo ist die Bibliothek?",
}


def test_en_de_translates_everyday_sentences():
    found = npad.load("en-de").translate(list(SENTENCES), Beam(5))
    assert [output.text for output in found] == list(SENTENCES.values())


def test_en_de_is_the_default_model_of_the_command():
    done = command("translate", "How do I get to the station?")
    assert done.stdout == "Wie komme ich zum Bahnhof?\n"


def test_npad_finds_no_less_than_greedy_search():
    texts = [
        "She spends most of her money on books.",
        "I would rather stay at home than go out tonight.",
        *SENTENCES,
    ]
    translator = npad.load("en-de")
    greedy, noisy = (
        translator.translate(texts, decoder)
        for decoder in (Greedy(), NPAD(Greedy(), 10, Noise(0.3)))
    )
    assert all(b.log_prob >= a.log_prob - 1e-4 for a, b in zip(greedy, noisy, strict=True))
    assert noisy[0].log_prob > greedy[0].log_prob + 1


def test_the_shipped_actor_changes_greedy_outputs_and_keeps_clean_scores():
    translator, texts = npad.load("en-de"), list(SENTENCES)
    found = translator.translate(texts, SteeredSearch())
    assert [output.text for output in found] == list(SENTENCES.values())
    scores = translator.score(texts, [output.text for output in found])
    assert [output.log_prob for output in found] == pytest.approx(scores, abs=1e-3)
    hard = ["She spends most of her money on books."]
    greedy, steered = (
        translator.translate(hard, decoder)[0] for decoder in (Greedy(), SteeredSearch())
    )
    assert greedy.text != steered.text


def test_en_de_is_small_and_loads_in_a_second():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 16 * 2**20
    times = []
    for _ in range(3):
        began = time.perf_counter()
        npad.load("en-de")
        times.append(time.perf_counter() - began)
    assert min(times) < 1


def test_the_model_card_credits_its_data():
    card = (FOLDER / "README.md").read_text()
    for part in ("Tatoeba", "CC BY 2.0 FR", "npad train", "seed 0", "BLEU"):
        assert part in card
    about = json.loads((FOLDER / "config.json").read_text())
    assert about["training"]["data"]["train"]["kept"] == 164_211


@pytest.mark.parametrize("shape", [(5, 40), (3, 1), (7,)])
def test_int8_is_within_half_a_step_of_its_row(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape) * torch.tensor(
        [0.0, 1e-3, 1.0, 50.0, 2.0, 1.0, 1.0][: shape[0]]
    ).view(-1, *[1] * (len(shape) - 1))
    (again,) = unpack_weights(pack_weights({"w": weight})).values()
    step = weight.abs().amax(1, keepdim=True) / 127 if weight.dim() == 2 else torch.zeros(())
    assert bool(((again - weight).abs() <= step / 2 + 1e-6).all())


def test_pack_makes_a_small_copy(tmp_path, printed_here):
    assert "MiB" in printed_here("pack", FOLDER, tmp_path / "copy")
    once, twice = (checkpoint.load(folder).model for folder in (FOLDER, tmp_path / "copy"))
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b)
