"""How numbers are said: names, units and digits of metrics, which of them leads, and which columns a page has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradleak.audit.verdict import Overall, Row, lead, overall
from gradleak.metrics.text import TextMetric
from gradleak.types import Metric


@dataclass(frozen=True)
class Measure:
    """A metric as a person writes it."""

    label: str
    unit: str = ""
    digits: int = 2
    axis: str = ""
    note: str = "mean"

    def said(self, value: float) -> str:
        """With its unit, or with its name where it has none."""
        return f"{value:.{self.digits}f} {self.unit}" if self.unit else f"{self.label} {value:.{self.digits}f}"


MEASURES = {
    "psnr": Measure("PSNR", "dB", 1, "PSNR (dB)", "mean, in dB"),
    "ssim": Measure("SSIM", axis="SSIM (0 to 1)"),
    "lpips": Measure("LPIPS", axis="LPIPS (lower is closer)"),
    "mse": Measure("MSE", digits=4, axis="mean squared error"),
    "exact_match": Measure("exact match", axis="read word for word (share)", note="share read word for word"),
    "rouge1": Measure("ROUGE-1", axis="ROUGE-1 (0 to 1)", note="mean, 0 to 1"),
    "rouge2": Measure("ROUGE-2", axis="ROUGE-2 (0 to 1)", note="mean, 0 to 1"),
    "rougeL": Measure("ROUGE-L", axis="ROUGE-L (0 to 1)", note="mean, 0 to 1"),
    "token_accuracy": Measure("tokens in place", axis="tokens in place (share)", note="share of tokens in place"),
    "token_f1": Measure("tokens", axis="tokens in any order (F1)"),
}


def measure(name: str) -> Measure:
    """Of a metric nobody has words for, its name."""
    return MEASURES.get(name, Measure(name, axis=name))


def leading(row: Row) -> Metric:
    """The metric that stands for a row where there is room for one, among those that could be computed."""
    scorers = row.cell.scorers()
    return lead([m for m in scorers if m.name not in row.unscored]) or scorers[0]


def of_text(row: Row) -> bool:
    """Whether sentences were read, as far as the metrics tell: no model is loaded to find out."""
    return isinstance(leading(row), TextMetric)


def by_lead(rows: Iterable[Row]) -> list[tuple[Metric, list[Row]]]:
    """Rows that are measured alike."""
    groups: dict[str, tuple[Metric, list[Row]]] = {}
    for row in rows:
        metric = leading(row)
        groups.setdefault(metric.name, (metric, []))[1].append(row)
    return list(groups.values())


def attacks_together(rows: Sequence[Row]) -> list[tuple[Measure, Overall]]:
    """Several attacks on one target as one, in the target's own measure."""
    return [(measure(metric.name), found) for metric, group in by_lead(rows)
            for found in overall(group, metric.name, metric.better)]


@dataclass(frozen=True)
class Column:
    """One number a row. `label` stands beside it where the page is too narrow for a head."""

    metric: str
    head: str
    small: str = ""
    label: str = ""
    shows: Literal["mean", "interval", "worst", "share"] = "mean"
    digits: int = 2


LABELS = Column("label_accuracy", "Labels", label="Labels right", shows="share")
IMAGE = (
    Column("psnr", "PSNR", "dB, mean [95 %]", "PSNR, dB [95 %]", "interval", 1),
    Column("psnr", "Worst", "dB", "Worst, dB", "worst", 1),
    Column("ssim", "SSIM", label="SSIM"), Column("lpips", "LPIPS", label="LPIPS"),
)
TEXT = (
    Column("exact_match", "Exact", "match", "Exact match", "share"),
    Column("rouge1", "ROUGE", "1", "ROUGE-1"), Column("rouge2", "ROUGE", "2", "ROUGE-2"),
    Column("rougeL", "ROUGE", "L, mean [95 %]", "ROUGE-L [95 %]", "interval"),
    Column("token_accuracy", "Tokens", "in place", "Tokens in place", "share"),
)


def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Those of images, of text, or both."""
    kinds = {of_text(row) for row in rows} or {False}
    return (*(IMAGE if False in kinds else ()), *(TEXT if True in kinds else ()), LABELS)
