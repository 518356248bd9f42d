"""The metrics by name."""

from __future__ import annotations

from npad import plugins
from npad.errors import InvalidInput
from npad.metrics.bleu import Bleu
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.chrf import Chrf
from npad.metrics.metric import LogProb, Metric
from npad.metrics.ter import Ter
from npad.metrics.wer import Wer
from npad.validation import brief, did_you_mean

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (Bleu(), Chrf(), Ter(), LogProb(), Wer(), Bleu4(), Cider())
}


def metric_named(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        InvalidInput: no metric has that name.
    """
    if not isinstance(name, str) or name not in metric_names():
        rule = f"metric must be one of {', '.join(metric_names())}, not {brief(name)}"
        raise InvalidInput(rule + did_you_mean(str(name), metric_names()))
    if name not in METRICS:
        plugin = plugins.installed(plugins.METRICS)[name]
        value = plugin.load()
        metric = plugin.call(value) if isinstance(value, type) else value
        if not isinstance(metric, Metric) or metric.name != name:
            raise InvalidInput(f"{plugin} must be an npad.metrics.metric.Metric of that name")
        METRICS[name] = metric
    return METRICS[name]


def metric_names() -> list[str]:
    """Return the names of all metrics, with those of installed packages, which stay unloaded."""
    return [*METRICS, *(name for name in plugins.installed(plugins.METRICS) if name not in METRICS)]


def utility_names() -> list[str]:
    """Return the metrics that compare two sequences of tokens, as minimum Bayes risk does."""
    return [metric.name for metric in METRICS.values() if metric.compares_tokens]


def is_utility(name: str) -> bool:
    """Return whether a metric of that name compares two sequences of tokens."""
    return name in metric_names() and metric_named(name).compares_tokens
