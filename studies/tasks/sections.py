"""The reports on captions and speech: sections that translation's has not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.metric import TIE, FloatArray
from npad.metrics.wer import Wer
from npad.reproduce import chosen
from npad.reproduce.bench import Bench, Measures, decoder_signature
from npad.reproduce.chosen import CHAINS
from npad.reproduce.claims import Finding, in_words, verdict
from npad.reproduce.markdown import markdown_table
from npad.reproduce.record import Form, is_number, is_text
from npad.reproduce.report import Outline, Sections, Setup
from npad.reproduce.tables import LabelledDecoders, comparison, quality_cells
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.sampling import Sampling
from studies.beyond.outline import Beyond
from studies.beyond.sections import tempered

MAX_WER = 5.0  # per cent, of greedy search on clean recordings: what a trained model must reach
NEARLY_ALL = 0.98  # of the sources: no strategy beats greedy search on so many
EXAMPLES = 10  # pictures whose captions are shown
TEXTS: Form = [lambda texts: isinstance(texts, dict) and all(map(is_text, texts.values()))]
CONTROLLED: dict[str, Decoder] = {"greedy": Greedy(), "beam 5": Beam(5)}


class TaskOutline(Beyond):
    """What the reports on captions and speech have in common."""

    def summary(self, bench: Bench, by_set: Mapping[str, Sequence[Finding]]) -> dict[str, str]:
        return {
            "How often is greedy search beaten?": to_be_found(bench),
            "Do the paper's claims carry over?": carried_over(bench, by_set),
        }

    def further(self, setup: Setup) -> Sections:
        unchanged = super().further(setup)
        for name in ("Sampling at lower temperatures", "Schedules", "Distributions"):
            del unchanged[name]
        return unchanged | {"Equal compute": equal_rows}


class CaptionOutline(TaskOutline):
    """The report on captions."""

    task = "caption"
    # The committed reports contain these legends: keep their lines as they are.
    measures = Measures(
        "picture",
        (Cider(scale=100), Bleu4()),
        "CIDEr-D (times 100)\nand BLEU-4 are against all references of a picture, "
        "as captioning papers have them.",
        valid_seeds=1,
    )

    def sections(self, setup: Setup) -> Sections:
        own: Sections = {}
        if setup.controls:
            own["Does it see the picture?"] = partial(controls, names=setup.controls)
        own["Ten pictures"] = partial(examples, descriptions=setup.descriptions)
        return own | super().sections(setup)


class SpeechOutline(TaskOutline):
    """The report on speech."""

    task = "speech"
    measures = Measures(
        "recording",
        (Wer(),),
        "WER is the word error rate in per cent,\nof normalised English; lower is better.",
        valid_seeds=1,
    )

    def sections(self, setup: Setup) -> Sections:
        return {"Word error rate by noise": noise_levels} | super().sections(setup)


OUTLINES: dict[str, Outline] = {"caption": CaptionOutline(), "speech": SpeechOutline()}


def to_be_found(bench: Bench) -> str:
    """Format how often no strategy of the paper's tables beats a decoder in probability."""
    rivals = _rivals(bench)
    rows = []
    for name in ("greedy", "sampling, 50", "NPAD-50 + greedy", "beam 5", "beam 10"):
        shares = [unbeaten(bench, s, rivals[name], list(rivals.values())) for s in bench.tests]
        rows.append([name, *(f"{share:.1%}" for share in shares)])
    unit = bench.measures.unit
    text = f"The share of {unit}s for which none of these and the other strategies of the paper's "
    text += "tables found a more probable output, first seeds:\n\n"
    text += markdown_table(["strategy", *bench.tests], rows)
    if greedy_is_unbeaten(bench):
        text += f"\nNo strategy beats greedy search on at least {NEARLY_ALL:.0%} of the {unit}s.\n"
    return text


def greedy_is_unbeaten(bench: Bench) -> bool:
    """Return whether greedy search is unbeaten for nearly all sources of every test set."""
    rivals = list(_rivals(bench).values())
    return all(unbeaten(bench, s, Greedy(), rivals) >= NEARLY_ALL for s in bench.tests)


def _rivals(bench: Bench) -> dict[str, Decoder]:
    return {name: factory() for name, factory in chosen.strategies(bench).items()}


def unbeaten(bench: Bench, set_name: str, decoder: Decoder, rivals: Sequence[Decoder]) -> float:
    """Return the share of sources for which no rival found a more probable output."""

    def scores(decoder: Decoder) -> FloatArray:
        entries = bench.entries(set_name, decoder)
        return np.array([score if finished else -np.inf for score, _, finished in entries])

    def measure() -> float:
        best = np.max([scores(rival) for rival in rivals], axis=0)
        return float(np.mean(scores(decoder) >= best - TIE))

    key = ("unbeaten", set_name, *map(decoder_signature, (decoder, *rivals)))
    return float(bench.result(key, measure, is_number))


def carried_over(bench: Bench, by_set: Mapping[str, Sequence[Finding]]) -> str:
    """Format a table of the verdicts on the paper's claims on each test set, and their sum."""
    reason = ": greedy search is unbeaten" if greedy_is_unbeaten(bench) else ""
    rows = []
    for findings in zip(*by_set.values(), strict=True):
        verdicts = [finding.verdict for finding in findings]
        words = overall(verdicts)
        rows.append([findings[0].claim, *verdicts, words + reason if words == "no" else words])
    return markdown_table(["claim", *by_set, "carries over"], rows, words=True)


def overall(verdicts: Sequence[str]) -> str:
    """Say whether a claim carries over, from its verdicts on all test sets."""
    if all(words == "confirmed" for words in verdicts):
        return "yes"
    if all(words == "confirmed" or re.match(r"NLL( and \S+)? only", words) for words in verdicts):
        return "in NLL"
    if all(words.startswith("not confirmed") for words in verdicts):
        return "no"
    return "–" if any(words.startswith("too few") for words in verdicts) else "in part"


def equal_rows(bench: Bench) -> str:
    """Format a table of strategies with 5, 10 and 50 rows, and what NPAD gains on the others."""
    by_rows = {n: _of_rows(bench, n) for n in CHAINS}
    rows: LabelledDecoders = [
        ((name, f"{n}"), decoder)
        for n, strategies in by_rows.items()
        for name, decoder in strategies.items()
    ]
    table = comparison(bench, ("strategy", "rows"), rows)
    gains = []
    for n, strategies in by_rows.items():
        (_, npad), *rivals = strategies.items()
        for name, decoder in rivals:
            gaps = [bench.paired(set_name, (npad, decoder)) for set_name in bench.tests]
            cells = (f"{in_words(gap, bench.measures)}: {_short(bench, gap)}" for gap in gaps)
            gains.append([f"NPAD-{n} less {name}, {n}", *cells])
    header = ["difference", *bench.tests]
    return f"{table}\n{markdown_table(header, gains, words=True)}"


def _of_rows(bench: Bench, n: int) -> dict[str, Decoder]:
    """Return NPAD and its rivals that step n rows at a time."""
    return {
        "NPAD + greedy": chosen.npad_greedy(bench, n),
        "greedy and samples at 0.5": tempered(0.5, n),
        "sampling": Sampling(n),
        "beam": Beam(n),
    }


def _short(bench: Bench, differences: Sequence[Difference]) -> str:
    """Return the verdict with "confirmed" and "not confirmed" put as better and not better."""
    words = verdict(differences, bench.measures)
    return words.replace("not confirmed", "not better").replace("confirmed", "better")


def controls(bench: Bench, names: Sequence[str]) -> str:
    """Format a table of captions of the pictures beside those of controls that do not see them."""
    set_name = bench.tests[0]
    metrics = [metric.title for metric in bench.measures.metrics]
    rows, lines = [], []
    for label, decoder in CONTROLLED.items():
        real = bench.figures(set_name, decoder)
        rows.append([f"{set_name}, {label}", *quality_cells(bench, real)[1:], "–"])
        for control in names:
            figures = bench.figures(control, decoder)
            key = ("paired sets", set_name, control, decoder_signature(decoder))
            runs = [(set_name, decoder), (control, decoder)]
            _, *differences = bench.compare_runs(key, runs)
            gained = ", ".join(f"{m} {d}" for m, d in zip(metrics, differences, strict=True))
            rows.append([f"{control}, {label}", *quality_cells(bench, figures)[1:], gained])
            clear = all(difference.low > 0 for difference in differences)
            lines.append(f"- {label}, against {control}: {_clearly(clear)} by every metric.\n")
    table = markdown_table(["pictures and decoder", *metrics, "gained by seeing the picture"], rows)
    return (
        "`other pictures`: the same model, shown the next picture of the test set; `blind model`: "
        "one trained with the pictures of other captions.\n\n"
        f"{table}\n{''.join(lines)}"
    )


def _clearly(better: bool) -> str:
    return "clearly better" if better else "not clearly better"


def examples(bench: Bench, descriptions: Sequence[str] = ()) -> str:
    """Format captions of ten test pictures beside descriptions, or else their references."""
    decoders: dict[str, Decoder] = {
        "greedy": Greedy(),
        "beam 5": Beam(5),
        "NPAD-50 + greedy": chosen.npad_greedy(bench),
    }
    set_name = bench.tests[0]

    def places() -> range:
        size = len(bench.sets[set_name].references)
        return range(0, size, max(1, size // EXAMPLES))[:EXAMPLES]

    def outputs() -> list[dict[str, str]]:
        entries = {name: bench.entries(set_name, decoder) for name, decoder in decoders.items()}
        return [{name: texts[i][1] for name, texts in entries.items()} for i in places()]

    def references() -> list[dict[str, str]]:
        texts = bench.sets[set_name].references
        return [{str(number): text for number, text in enumerate(texts[i])} for i in places()]

    key = ("examples", set_name, EXAMPLES, *map(decoder_signature, decoders.values()))
    shown = bench.result(key, outputs, TEXTS)
    described = descriptions or [
        " / ".join(text.strip() for text in texts.values())
        for texts in bench.result(("references", set_name, EXAMPLES), references, TEXTS)
    ]
    if len(described) != len(shown):
        raise InvalidInput(
            f"{len(described)} descriptions were given for {len(shown)} pictures; "
            "write one per line"
        )
    numbered = enumerate(zip(described, shown, strict=True), start=1)
    return "".join(_example(number, *pair) for number, pair in numbered)


def _example(number: int, description: str, outputs: dict[str, str]) -> str:
    lines = [f"{number}. In words: {description}\n\n"]
    lines += [f"   - {name}: **{text}**\n" for name, text in outputs.items()]
    return "".join([*lines, "\n"])


def noise_levels(bench: Bench) -> str:
    """Format the word error rates of the strategies by noise, and whether the bar is met."""
    rows = []
    for name, factory in chosen.strategies(bench).items():
        decoder = factory()
        by_level = [bench.figures(set_name, decoder) for set_name in bench.tests]
        rows.append([name, *(figures.format(bench.metric.name) for figures in by_level)])
    table = markdown_table([f"{bench.metric.title}", *bench.tests], rows)
    return f"{table}\n{''.join(_bar(bench))}"


def _bar(bench: Bench) -> Iterator[str]:
    if "clean" in bench.tests:
        rate = bench.row("clean", Greedy())[bench.metric.name]
        met = "met" if rate <= MAX_WER else "missed"
        bar = f"the bar of {MAX_WER:g} % is {met}"
        yield f"Greedy search on clean recordings: {rate:.2f} %; {bar}.\n"
