"""Train actors for the model that ships, and write what decoders find with them.

python benchmarks/actors.py --data DIR --out OUT --minutes 11 --device cuda \\
    --variant ff: gated:kind=gated,inputs=state+embedding weights:kind=weights

DIR holds tatoeba-en-de/{train,valid,test}.{en,de}.xz and, as sources that the model has not seen,
the English sides of other corpora (UNSEEN below); `tatoeba` is the first of these, and `varied` are
the training sources less one word each. A variant is NAME:field=value,…; its fields are those of
`Variant`, with + between several values. `kind=weights` trains all weights of the model on the same
pairs instead of an actor. Beams decode the sources once, into --work, where a second run finds
them. In OUT:

hypotheses.jsonl   a line per system: texts and clean log-probabilities of the test set, time, calls
log.jsonl          a line per validation of each variant
actors-N.tar       the best actor of each variant
SET-WIDTH.safetensors   the beam's outputs

What is done is written at once, so that a killed run leaves it. benchmarks/actors_score.py prints
the table.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import tarfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from actors_variant import Variant
from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.models.actors import Actor
from npad.models.cgru.fast import prepared
from npad.models.steered import Steered
from npad.noise.noisy import Noise
from npad.pipelines.names import SHIPPED
from npad.scoring import score
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.storage import checkpoint
from npad.storage.actors import load_actor
from npad.text.files import read_lines
from npad.text.subwords import Detokeniser
from npad.training.batches import Buckets
from npad.training.loop import Loop, Watch
from npad.training.store import PairCorpus
from npad.training.targets import pairs_of
from npad.training.teacher import Candidates, Teacher, decode_sources
from npad.training.update import ActorUpdater, ModelUpdater
from npad.training.validation import GreedySearch, Steering
from studies.steering.variant import joined, without_a_word

SEEN = ("tatoeba-en-de/train.en.xz",)
TATOEBA = ("wmt-en-cs/tatoeba.en.xz",)
UNSEEN = (
    *TATOEBA,
    "multi30k-en-cs/train.en.xz",
    "wmt-en-cs/news.en.xz",
    "wmt-en-cs/libreoffice.en.xz",
    "wmt-en-cs/msdocs.en.xz",
)
TEACHING = 0.45  # share of the time that beams may take
TEST_ROWS = {"cuda": 8192, "cpu": 512}
MAX_BYTES = 14 << 20  # of a file of actors


class Bench:
    """The model, the data, and the clock."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + 60 * arguments.minutes
        self.out, self.work = arguments.out, arguments.work
        self.data, self.limit = arguments.data, arguments.sources
        self.longest = arguments.longest
        self.device = device_named(arguments.device)
        saved = checkpoint.load(SHIPPED["en-de"], self.device)
        self.checksum = saved.about["sha256"][checkpoint.WEIGHTS]
        self.model, (self.subwords, target) = saved.model, saved.subwords
        self.detokeniser = Detokeniser(target)
        self.fast = prepared(self.model)
        self.excluded: set[str] = set()
        self.valid = self.texts("tatoeba-en-de/valid.en.xz")[: arguments.test]
        self.test = self.texts("tatoeba-en-de/test.en.xz")[: arguments.test]
        self.excluded = {*self.valid, *self.test}
        self.candidates: dict[tuple[str, Teacher], list[Candidates]] = {}
        self.sources: dict[str, list[list[int]]] = {}
        self.out.mkdir(parents=True, exist_ok=True)

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def texts(self, *files: str) -> list[str]:
        lines = (line for file in files for line in read_lines(self.data / file))
        return [line for line in dict.fromkeys(lines) if line not in self.excluded]

    def references(self) -> dict[str, str]:
        """Return the first reference of each source of the training data."""
        pairs = zip(
            read_lines(self.data / "tatoeba-en-de/train.de.xz"),
            read_lines(self.data / SEEN[0]),
            strict=True,
        )
        return {source: target for target, source in reversed(list(pairs))}

    def source_texts(self, name: str) -> list[str]:
        """Return the sources of a set: of at most `longest` tokens, `limit` of them at random."""
        files = {"unseen": UNSEEN, "tatoeba": TATOEBA}.get(name, SEEN)
        texts = self.texts(*(file for file in files if (self.data / file).exists()))
        if name == "varied":
            texts = [without_a_word(text, i) for i, text in enumerate(texts)]
        if name != "seen":
            seen = set(self.texts(*SEEN))
            texts = [text for text in dict.fromkeys(texts) if text not in seen]
        lengths = [len(tokens) for tokens in self.subwords.encode(texts)]
        texts = [t for t, n in zip(texts, lengths, strict=True) if 0 < n <= self.longest]
        if self.limit and len(texts) > self.limit:
            chosen = np.random.default_rng(0).permutation(len(texts))[: self.limit]
            texts = [texts[i] for i in sorted(chosen.tolist())]
        return texts

    def teach(self, name: str, teacher: Teacher, until: float) -> None:
        """Decode a set of sources by a beam, and write its best outputs."""
        if name not in self.sources:
            self.sources[name] = self.subwords.encode(self.source_texts(name))
        sources = self.sources[name]
        label = f"{name}-{teacher.width}-{teacher.candidates}"
        self.note(f"{label}: {len(sources):,} sources")
        noted = [time.monotonic()]

        def progress(task: str, done: int, total: int) -> None:
            if time.monotonic() > noted[0] + 5 or done == total:
                noted[0] = time.monotonic()
                self.note(f"{label}: {done:,} of {total:,} decoded")

        parts = decode_sources(
            self.work / label,
            self.fast,
            self.checksum,
            sources,
            teacher,
            progress,
            stop=lambda: time.monotonic() > until,
        )
        self.candidates[name, teacher] = parts
        if parts and teacher.candidates == 1:
            tensors = {
                "places": np.concatenate([part.places for part in parts]).astype(np.int32),
                "lengths": np.concatenate([part.lengths[:, 0] for part in parts]).astype(np.int16),
                "log_probs": np.concatenate([part.log_probs[:, 0] for part in parts]),
                "tokens": np.concatenate([part.tokens for part in parts]).astype(np.int16),
            }
            path = self.out / f"{name}-{teacher.width}.safetensors"
            save_file({key: torch.from_numpy(x) for key, x in tensors.items()}, path)

    def pairs(self, variant: Variant) -> PairCorpus:
        corpora = []
        for name in variant.data.split("+"):
            references = None
            if set(variant.targets.split("+")) & {"bleu", "chrf"}:
                of = self.references()
                references = [of[text] for text in self.source_texts(name)]
            parts = self.candidates[name, variant.teacher]
            if not parts:
                continue
            known = None
            if variant.differing:
                greedy = self.candidates[name, Teacher(1)]
                found = (pair for part in greedy for pair in part.hypotheses())
                known = {place: hypotheses[0][0] for place, hypotheses in found if hypotheses}
            chosen = variant.targets.split("+"), references, self.detokeniser.all, known
            corpora.append(pairs_of(parts, self.sources[name], *chosen))
        return joined(corpora)

    def measure(self, system: str, model: Any, decoder: Decoder, **more: Any) -> None:
        """Decode the test set, twice on a GPU, whose first pass captures, and write the outputs."""
        sources = self.subwords.encode(self.test)
        rows = max(1, TEST_ROWS[self.device.type] // decoder.rows)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found: list[Any] = [None] * len(order)
        for _ in range(2 if self.device.type == "cuda" else 1):
            began = time.monotonic()
            with count_calls() as calls:
                for start in range(0, len(order), rows):
                    places = order[start : start + rows]
                    batch = decode(model, [sources[i] for i in places], decoder, 100, ids=places)
                    for place, hypotheses in zip(places, batch, strict=True):
                        found[place] = hypotheses[0]
            seconds = time.monotonic() - began
        texts = self.detokeniser.all([hypothesis.tokens for hypothesis in found])
        targets = [[list(hypothesis.tokens)] for hypothesis in found]
        judged = [s for (s,) in score(self.fast, sources, targets)]  # as if all were finished
        log_probs = [round(log_prob, 5) for log_prob in judged]
        record = {
            "system": system,
            "device": str(self.device),
            "seconds": round(seconds, 3),
            "calls": calls.search,
            "rescoring": calls.rescoring,
            **more,
            "log_probs": log_probs,
            "texts": texts,
        }
        self.write("hypotheses.jsonl", record)
        mean = sum(log_probs) / len(log_probs)
        self.note(f"{system}: log p {mean:.3f}, {seconds:.2f} s")

    def write(self, name: str, record: dict[str, Any]) -> None:
        with open(self.out / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def train(self, variant: Variant, until: float) -> None:
        """Train a variant and measure the systems that it makes."""
        pairs = self.pairs(variant)
        self.note(f"{variant.name}: {len(pairs):,} pairs")
        if variant.kind == "weights":
            self.fine_tune(variant, pairs, until)
            return
        torch.manual_seed(variant.seed)
        options = {"kind": variant.kind, "units": variant.units, "layers": variant.layers}
        inputs, sites = variant.inputs.split("+"), variant.sites.split("+")
        actor = Actor.for_model(self.model, sites, inputs=inputs, **options)
        search = GreedySearch(self.subwords.encode(self.valid), max_length=100)
        about = {key: value for key, value in vars(variant).items() if key != "name"}
        about["pairs"] = len(pairs)
        loop = Loop(
            self.work / f"actor-{variant.name}",
            ActorUpdater(self.model, actor, pairs, variant.recipe(self.device)),
            Steering(self.model, actor, search, self.checksum, about),
            {"model": self.checksum, "actor": actor.options, "data": about},
            Curve(self, variant.name),
            stop=lambda: time.monotonic() > until,
        )
        try:
            reason = loop.run()
        except RuntimeError as error:  # such as a step that cannot be captured
            self.note(f"{variant.name}: {str(error).splitlines()[0]}; without CUDA graphs")
            loop.updater.features = None
            reason = loop.run()
        self.note(f"{variant.name}: {actor.size():,} parameters, {reason}")
        if loop.best() is None:
            self.note(f"{variant.name}: never better than greedy search; the last one is kept")
            loop.keep_current()
        self.pack()
        kept = loop.best()
        best = None if kept is None else load_actor(kept, self.checksum, self.device)
        assert best is not None
        steered, about = Steered(self.fast, best), {"variant": vars(variant)}
        self.measure(f"steered {variant.name}", steered, Greedy(), **about)
        npad = NPAD(Greedy(), 10, Noise(0.3))
        self.measure(f"NPAD-10 over steered {variant.name}", steered, npad, **about)
        self.measure(f"steered {variant.name}, beam 5", steered, Beam(5), **about)

    def fine_tune(self, variant: Variant, pairs: PairCorpus, until: float) -> None:
        """Train all weights of a copy of the model, as `npad train` does, without selection."""
        model = copy.deepcopy(self.model).requires_grad_(True)
        updater = ModelUpdater(model, pairs, variant.recipe(self.device), self.device)
        if self.device.type == "cuda":
            updater.batcher = Buckets(pairs, model.special, variant.batch)
        update = 0
        for epoch in range(variant.epochs):
            batches = updater.batcher.epoch(variant.seed, epoch)
            for i, batch in enumerate(batches):
                done = (epoch + i / len(batches)) / variant.epochs
                for group in updater.optimiser.param_groups:
                    group["lr"] = variant.rate * (0.5 + 0.5 * math.cos(math.pi * done))
                update += 1
                updater.update(batch, update)
            torch.cuda.synchronize() if self.device.type == "cuda" else None
            self.note(f"{variant.name}: epoch {epoch + 1}, {update} updates")
            if time.monotonic() > until:
                break
        fast, about = prepared(model.requires_grad_(False).eval()), {"variant": vars(variant)}
        self.measure(f"weights {variant.name}", fast, Greedy(), **about)
        self.measure(f"weights {variant.name}, beam 5", fast, Beam(5), **about)

    def pack(self) -> None:
        """Write the best actors so far into files of at most MAX_BYTES."""
        files: list[list[Path]] = []
        filled = math.inf
        for folder in sorted(self.work.glob("actor-*/best-*")):
            size = sum(path.stat().st_size for path in folder.iterdir())
            if filled + size > MAX_BYTES:
                files.append([])
                filled = 0
            files[-1].append(folder)
            filled += size
        part = self.out / ".actors.part"
        for number, folders in enumerate(files):
            with tarfile.open(part, "w") as tar:
                for folder in folders:
                    tar.add(folder, folder.parent.name)
            os.replace(part, self.out / f"actors-{number}.tar")


class Curve(Watch):
    """Writes each validation to the log."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name = bench, name

    def report(self, record: dict[str, Any]) -> None:
        if "best" not in record:
            return
        self.bench.write("log.jsonl", {"variant": self.name, **record})
        perplexity, log_prob = record.get("perplexity", 0.0), record["log_prob"]
        self.bench.note(
            f"{self.name}: epoch {record['epoch']}, perplexity {perplexity:.3f}, "
            f"greedy log p {log_prob:.3f}{', best' if record['best'] else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/actors"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sources", type=int, default=0, help="of each set at most; default all")
    parser.add_argument("--test", type=int, default=None, help="sentences of the test set")
    parser.add_argument("--longest", type=int, default=40, help="tokens of a source")
    parser.add_argument("--variant", nargs="+", type=Variant.parse, default=[Variant("ff")])
    arguments = parser.parse_args()
    bench = Bench(arguments)
    run_all(bench, arguments.variant)
    bench.note("done")


def run_all(bench: Bench, variants: list[Variant]) -> None:
    clock = time.monotonic
    bench.measure("greedy", bench.fast, Greedy())
    bench.measure("beam 5", bench.fast, Beam(5))
    bench.measure("beam 10", bench.fast, Beam(10))
    bench.measure("NPAD-10", bench.fast, NPAD(Greedy(), 10, Noise(0.3)))
    sets = dict.fromkeys(
        (name, teacher)
        for variant in variants
        for name in variant.data.split("+")
        for teacher in ([Teacher(1)] if variant.differing else []) + [variant.teacher]
    )
    taught = clock() + TEACHING * (bench.deadline - clock())
    for i, (name, teacher) in enumerate(sets):
        bench.teach(name, teacher, clock() + (taught - clock()) / (len(sets) - i))
    for i, variant in enumerate(variants):
        left = bench.deadline - clock()
        if left < 10:
            bench.note(f"no time for {variant.name}")
            continue
        try:
            bench.train(variant, clock() + 0.8 * left / (len(variants) - i))
        except Exception:  # the other variants go on
            bench.note(f"{variant.name} failed")
            traceback.print_exc()


if __name__ == "__main__":
    main()
