"""The length bias of minimum Bayes risk: lengths and quality of outputs, by selector.

python benchmarks/mbr_length.py --data FOLDER         test.en.xz and test.de.xz, as Tatoeba's

The most probable output tends to be short, and MBR has a bias that comes from its utility (Müller &
Sennrich, 2021). One set of samples per sentence, on the shipped model; each selector chooses
among them, or among a beam's candidates with the samples as pseudo-references. A length ratio is
the words of all outputs over those of all references.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import npad
from npad.hypotheses import Hypotheses
from npad.search.decoder import Decoder
from npad.text.files import read_lines

Found = list[list[npad.Hypothesis]]  # the distinct hypotheses of each sentence, best first


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    for name, value in {"sentences": 200, "samples": 50, "batch": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--temperature", type=float, nargs="+", default=[1.0, 0.5])
    arguments = parser.parse_args()
    texts, references = (
        list(read_lines(arguments.data / f"test.{language}.xz"))[: arguments.sentences]
        for language in ("en", "de")
    )
    translator = npad.load("en-de")
    source = translator.encode(texts)
    words = sum(len(reference.split()) for reference in references)
    print(f"{len(texts)} sentences, {arguments.samples} samples, {words} words of references")
    print("candidates, selector | length ratio | mean log p | BLEU | chrF")

    def report(name: str, chosen: list[npad.Hypothesis]) -> None:
        outputs = [translator.detokenise(hypothesis.tokens) for hypothesis in chosen]
        log_prob = sum(hypothesis.log_prob for hypothesis in chosen) / len(chosen)
        ratio = sum(len(output.split()) for output in outputs) / words
        bleu, chrf = (
            metric.corpus_score(outputs, [references]).score for metric in (BLEU(), CHRF())
        )
        print(f"{name} | {ratio:.3f} | {log_prob:.2f} | {bleu:.1f} | {chrf:.1f}", flush=True)

    beam = decoded(translator, source, npad.Beam(10), arguments.batch)
    report("beam of 10, most probable", [candidates[0] for candidates in beam])
    for temperature in arguments.temperature:
        sampling = npad.SharedSampling(arguments.samples, temperature)
        samples = decoded(translator, source, sampling, arguments.batch)
        name = f"samples at T={temperature}"
        report(f"{name}, most probable", [candidates[0] for candidates in samples])
        for metric in ("bleu", "chrf"):
            for kind in (npad.MBR, npad.selectors.ModelMBR):
                mbr = kind(metric, translator.detokenise)
                label = f"{kind.__name__} {metric}"
                report(f"{name}, {label}", selected(samples, samples, mbr))
                report(f"beam of 10, {label} by {name}", selected(beam, samples, mbr))


def decoded(translator: npad.Translator, source: Sequence, decoder: Decoder, batch: int) -> Found:
    """Return the finished hypotheses of a decoder, distinct and counted."""
    found: Found = []
    for start in range(0, len(source), batch):
        part = source[start : start + batch]
        ids = range(start, start + len(part))
        found += npad.decode(translator.model, part, npad.Selected(decoder), 100, ids=ids)
    return found


def selected(candidates: Found, references: Found, mbr: npad.MBR) -> list[npad.Hypothesis]:
    """Return the candidate of highest expected utility for each sentence."""
    chosen = []
    for found, others in zip(candidates, references, strict=True):
        utility = mbr.expected_utility(Hypotheses.from_list(found), Hypotheses.from_list(others))
        chosen.append(found[int(utility[0].argmax())])
    return chosen


if __name__ == "__main__":
    main()
