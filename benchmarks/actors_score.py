"""Print BLEU, NLL and lengths of what benchmarks/actors.py wrote, against beam search.

python benchmarks/actors_score.py OUT/hypotheses.jsonl --references DIR/tatoeba-en-de/test.de.xz

NLL is under the model that ships, whatever decoded. Differences are to --against, with 95 %
intervals of a paired bootstrap.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from npad.evaluate.bootstrap import paired
from npad.metrics.bleu import Bleu
from npad.metrics.metric import Scorer
from npad.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hypotheses", type=Path, nargs="+")
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--against", default="beam 5")
    arguments = parser.parse_args()
    systems = {}
    for path in arguments.hypotheses:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            systems[record["system"]] = record
    base = systems[arguments.against]
    references = list(read_lines(arguments.references))[: len(base["texts"])]
    bleu = Scorer(Bleu(), references)
    counts = {name: bleu.statistics(record["texts"]) for name, record in systems.items()}
    nll = {name: [-x for x in record["log_probs"]] for name, record in systems.items()}
    print(
        f"{'system':44} {'NLL':>6} {'BLEU':>6} {'length':>6} {'s':>6} {'calls':>9} "
        f"{'re-scored':>9}  BLEU against {arguments.against}"
    )
    for name, record in systems.items():
        mean = sum(nll[name]) / len(nll[name])
        compared = [counts[name], counts[arguments.against]]
        difference = "" if name == arguments.against else str(paired(bleu.metric, compared))
        ratio = bleu.metric.length_ratio(counts[name].sum(0))
        print(
            f"{name:44} {mean:6.3f} {bleu.metric.score(counts[name]):6.2f} {ratio:6.3f} "
            f"{record['seconds']:6.2f} {record['calls']:9,} {record['rescoring']:9,}  {difference}"
        )


if __name__ == "__main__":
    main()
