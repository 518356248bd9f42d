"""The documents show what the code does: blocks of Python and of commands print what is below."""

from __future__ import annotations

import re

import pytest
import torch

from cases import assert_same, key, with_zeros
from npad import NPAD, Noise, decode
from npad.models.table import TableModel
from pages import PAGES, ROOT, blocks_with_output, sessions_with_output

NEED_TRANSFORMERS = {"decoding.md", "huggingface.md"}
WITH_COMMANDS = [page for page in PAGES if "```console" in page.read_text()]


def without_numbers(text: str) -> str:
    """Without numbers, and without what they and their width decide."""
    text = text.replace("  best so far", "")
    return re.sub(r"[─━\s]+", " ", re.sub(r"-?[\d,.]*\d(:\d+)*%?", "#", text))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_a_page_shows_the_output_of_its_commands(page, tmp_path):
    if page.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    for block, text in sessions_with_output(page, tmp_path):
        as_read = without_numbers if block["vary"] else str
        assert as_read(text) == as_read(block["session"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_output_of_its_python(page):
    if page.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    for block, printed in blocks_with_output(page):
        assert printed == (block["shown"] or "")


def test_the_decoders_of_the_page_keep_the_theorems():
    page: dict[str, object] = {}
    blocks_with_output(ROOT / "docs/extending.md", page)
    model = with_zeros(TableModel.random(4, 4, seed=2, sentences=3, dtype=torch.float64), seed=2)
    for decoder in (page["Branching"](6), page["EpsilonGreedy"](0.4)):
        together = decode(model, [0, 1, 2], decoder, 5)
        for i in range(3):
            possible = {(output.tokens, output.finished) for output in model.outputs(i, 5)}
            assert {(h.tokens, h.finished) for h in together[i]} <= possible
            assert_same(decode(model, [i], decoder, 5, ids=[i]), [together[i]])
        best = decode(model, [0, 1, 2], NPAD(decoder, 5, Noise(0.5)), 5)
        assert all(
            key(a[0]) >= (b[0].finished, b[0].log_prob - 1e-9)
            for a, b in zip(best, together, strict=True)
        )


def test_the_readmes_hugging_face_example_runs(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    from hf_cases import save

    save(tmp_path, "marian")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    given = {
        "model": transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path),
        "tokenizer": tokenizer,
        "inputs": tokenizer(["w3 w4 w5"], return_tensors="pt"),
    }
    (block,) = re.findall(r"```py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(block, "README.md", "exec"), given)
    assert "tensor([" in capsys.readouterr().out


def test_the_readme_lists_every_page_of_the_guide():
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in readme] == []


def test_a_pages_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
