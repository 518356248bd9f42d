"""The metrics by name."""

from __future__ import annotations

from npad.errors import InvalidInput
from npad.metrics.bleu import Bleu
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.chrf import Chrf
from npad.metrics.metric import LogProb, Metric
from npad.metrics.ter import Ter
from npad.metrics.wer import Wer
from npad.validation import brief

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (Bleu(), Chrf(), Ter(), LogProb(), Wer(), Bleu4(), Cider())
}


def metric_named(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        InvalidInput: no metric has that name.
    """
    if not isinstance(name, str) or name not in METRICS:
        raise InvalidInput(f"metric must be one of {', '.join(METRICS)}, not {brief(name)}")
    return METRICS[name]


def utility_names() -> list[str]:
    """Return the metrics that compare two sequences of tokens, as minimum Bayes risk does."""
    return [metric.name for metric in METRICS.values() if metric.compares_tokens]
