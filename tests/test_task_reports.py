"""Captions and speech, from decoding to the rendered report."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
import torch

from npad.errors import InvalidInput
from npad.experiments import report, tasks
from npad.experiments.claims import verdict
from npad.experiments.decoded_bench import DecodedBench
from npad.experiments.hypotheses import read_entries
from npad.experiments.measured_task import CAPTION, SPEECH, WordErrors
from npad.experiments.record import NotMeasured
from npad.experiments.task_sections import overall
from npad.evaluate.bootstrap import Difference
from npad.models.cgru.model import AttentionModel
from npad.search.greedy import Greedy
from npad.storage import checkpoint
from npad.text.subwords import Subwords
from runs import once
from test_digits import corpus as corpus  # a fixture

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 210)}
SMALL = ["--device", "cpu", "--seeds", "2", "--budget", "20", "--max-rows", "512"]


def picture(colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(content, "PNG")
    return content.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A corpus like Flickr8k: squares of three colours, two captions each."""
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("pictures")
    with tarfile.open(folder / "images-80px.tar", "w") as archive:
        for split in ("train", "valid", "test"):
            lines = []
            for i, (name, colour) in enumerate(list(COLOURS.items()) * 2):
                shade = tuple(min(255, value + 5 * i) for value in colour)
                content = picture(shade)
                info = tarfile.TarInfo(f"{split}-{i}.png")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                lines += [f"{info.name}\ta {name} square .\n", f"{info.name}\tit is {name}\n"]
            (folder / f"{split}.tsv.xz").write_bytes(
                __import__("lzma").compress("".join(lines).encode())
            )
    return folder


def model_folder(folder, source, texts, **options):
    """An untrained model of a picture or a sound."""
    torch.manual_seed(0)
    target = Subwords.learn(texts, 300)
    model = AttentionModel(
        1,
        target.size,
        units=8,
        embedding=6,
        source=source,
        source_options=options,
        initialisation="glorot",
    )
    checkpoint.save(folder, model, (None, target), {})
    return folder


def decoded(task, model, data, out, *more):
    arguments = ["decode", task, "--model", str(model), "--data", str(data), "--out", str(out)]
    tasks.main([*arguments, *SMALL, *map(str, more)])


@pytest.fixture(scope="module")
def captioned(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captioned")
    texts = ["a red square .", "it is green", "a blue square ."]
    model = model_folder(folder / "model", "picture", texts, size=16, channels=[4, 4])
    decoded("caption", model, pictures, folder / "h.jsonl.gz", "--blind", model)
    return folder


def test_x(captioned):
    tasks.main(["report", str(captioned / "h.jsonl.gz"), str(captioned / "report")])
    print((captioned / "report/README.md").read_text())
