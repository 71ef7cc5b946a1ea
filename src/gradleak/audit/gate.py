"""A privacy gate: bars that a caller sets, in place of the metrics' own thresholds."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from gradleak.audit.plan import Audit
from gradleak.errors import UsageError, did_you_mean
from gradleak.types import Metric

Bars = Mapping[str, float]
"""By metric, the most that any single sample may leak."""


def bars(texts: Iterable[str], audit: Audit) -> dict[str, float]:
    """What `rougeL=0.2` and the like set, checked against what the audit measures before anything runs."""
    measured = sorted({metric.name for cell in audit.cells() for metric in cell.scorers()})
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise UsageError(f"--max-leak {text!r}: a metric and the most it may reach, as in --max-leak rougeL=0.2")
        if name not in measured:
            raise UsageError(f"--max-leak {text!r}: {name!r} is not measured by this audit: "
                             f"{did_you_mean(name, measured)}")
        found[name] = value
    return found


def held_to(trials: Sequence[dict[str, Any]], metrics: Sequence[Metric], most: Bars) -> list[dict[str, Any]]:
    """Records judged by these bars alone. Literally: a sample past its bar has leaked, however easy it was to guess."""
    return [_held_to(record, [m for m in metrics if m.name in most], most) for record in trials]


def _held_to(record: dict[str, Any], metrics: Sequence[Metric], most: Bars) -> dict[str, Any]:
    scores, warnings = record["scores"], list(record["warnings"])
    if not scores:
        return record
    past = [False] * len(record["leaked"])
    for metric in metrics:
        if metric.name not in scores:
            why = record["unscored"].get(metric.name, "it was not measured")
            warnings.append(f"--max-leak {metric.name}: no number to hold against it ({why})")
            continue
        sign = 1 if metric.better == "higher" else -1
        past = [was or sign * value > sign * most[metric.name]
                for was, value in zip(past, scores[metric.name], strict=True)]
    return {**record, "leaked": past, "warnings": warnings}
