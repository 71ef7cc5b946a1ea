"""Lines and points as SVG text inside the page, legible without colour and in the page's own ink."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any, NamedTuple

from markupsafe import Markup, escape

INK = "#010203"
"""Stands for the page's text colour until the SVG is written: dark pages turn it light."""

MARKS = (("o", "none", "--", "#2f74c0"), ("s", "full", "-", "#c4571a"), ("^", "none", ":", "#4b8b3b"),
         ("D", "full", "-.", "#8a4fa3"), ("v", "none", "--", "#7a6a1f"), ("P", "full", "-", "#3a8a8a"))
"""Marker, fill, line and colour, one a threat: any one of the first three is enough to tell them apart."""

LONGEST, MOST_POINTS, SMALLEST = 30, 160, 1e-12

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.size": 10, "font.family": "sans-serif", "text.parse_math": False,
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.unicode_minus": True,
    "legend.frameon": False, "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Point:
    """One cell in the plane of strength and leakage."""

    defense: str
    threat: str
    distortion: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Trace:
    """One trial over its steps."""

    steps: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Level:
    """A horizontal line with its name."""

    value: float
    name: str


def strength(points: Sequence[Point], axis: str, level: Level | None, title: str) -> Markup:
    """Leakage against how much the defense changed the update; what changed nothing stands at the left, at 0."""
    with _drawing(title) as (figure, axes):
        ends = _ends([p.distortion for p in points])
        axes.set_xscale("log")
        span = ends[1] - ends[0]
        for place, threat in enumerate(dict.fromkeys(p.threat for p in points)):
            mine = [p for p in points if p.threat == threat]
            # Side by side instead of on top of each other: most threats agree on most defenses.
            shift = 10 ** (0.016 * span * place)
            _threat(axes, mine, threat, MARKS[place % len(MARKS)], lambda d, s=shift: _where(d, ends) * s)
        axes.set_xlim(10 ** (ends[0] - 0.06 * span), 10 ** (ends[1] + 0.08 * span))
        _decades(axes, ends, any(p.distortion <= 0 for p in points))
        axes.yaxis.set_major_formatter(_plain)
        _level(axes, level)
        axes.set_xlabel("change of the update (relative length, log scale)")
        axes.set_ylabel(axis)
        _name_defenses(axes, points, ends)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, borderaxespad=0, handlelength=2.6)
        return _svg(figure, title)


@dataclass(frozen=True)
class Offer:
    """One defense setting in the plane of worth and leakage: each a mean with its interval."""

    number: int
    worth: tuple[float, float, float]
    leakage: tuple[float, float, float]
    held: bool
    front: bool


def frontier(offers: Sequence[Offer], across: str, up: str, level: Level | None, title: str) -> Markup:
    """Leakage against what the trained model is worth; numbers lead to the table. Filled: held. Joined: the front."""
    with _drawing(title, 3.4) as (figure, axes):
        for offer in offers:
            (x, *ends), (y, *span) = offer.worth, offer.leakage
            around, beside = ([[max(at - low, 0)], [max(high - at, 0)]] for at, (low, high) in ((y, span), (x, ends)))
            axes.errorbar(
                [x], [y], around, beside, linestyle="none", marker="s" if offer.held else "o", markersize=7,
                color=MARKS[0][3], elinewidth=0.7, capsize=2, markerfacecolor=MARKS[0][3] if offer.held else "none")
            axes.annotate(str(offer.number), (x, y), xytext=(6, 6), textcoords="offset points", fontsize=9)
        front = sorted((o.worth[0], o.leakage[0]) for o in offers if o.front)
        axes.plot([x for x, _ in front], [y for _, y in front], linestyle="--", color=MARKS[1][3], linewidth=1.1)
        axes.xaxis.set_major_formatter(_plain)
        axes.yaxis.set_major_formatter(_plain)
        _level(axes, level)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        return _svg(figure, title)


class Span(NamedTuple):
    """A mean with its interval."""

    mean: float
    low: float
    high: float


def training(lines: Mapping[str, Mapping[int, Span]], steps: Sequence[int], axis: str, level: Level | None,
             title: str) -> Markup:
    """A number at several points of training, evenly spaced whatever lies between; one line a defense and threat."""
    with _drawing(title) as (figure, axes):
        for number, (name, found) in enumerate(lines.items()):
            marker, fill, line, colour = MARKS[number % len(MARKS)]
            places = [steps.index(at) + 0.04 * number for at in sorted(found)]
            spans = [found[at] for at in sorted(found)]
            axes.errorbar(places, [s.mean for s in spans],
                          [[max(s.mean - s.low, 0) for s in spans], [max(s.high - s.mean, 0) for s in spans]],
                          linestyle=line, marker=marker, markersize=6, color=colour, linewidth=0.9, capsize=2.5,
                          markerfacecolor=colour if fill == "full" else "none", label=_short(name))
        axes.set_xticks(range(len(steps)), ["fresh" if not at else f"{at:,}" for at in steps])
        axes.yaxis.set_major_formatter(_plain)
        _level(axes, level)
        axes.set_xlabel("steps of training before the audited update")
        axes.set_ylabel(axis)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=1, borderaxespad=0, handlelength=2.6)
        return _svg(figure, title)


def progress(traces: Sequence[Trace], axis: str, level: Level | None, logarithmic: bool, title: str) -> Markup:
    """A number over the steps of the search, one thin line a trial."""
    with _drawing(title, 2.5) as (figure, axes):
        for number, trace in enumerate(traces):
            stride = max(1, ceil(len(trace.steps) / MOST_POINTS))
            keep = sorted({*range(0, len(trace.steps), stride), len(trace.steps) - 1})
            values = [max(trace.values[i], SMALLEST) if logarithmic else trace.values[i] for i in keep]
            axes.plot([trace.steps[i] for i in keep], values, color=INK, linewidth=0.9,
                      linestyle=("-", "--", ":", "-.")[number % 4])
        if logarithmic:
            axes.set_yscale("log")
            axes.minorticks_off()
        axes.yaxis.set_major_formatter(_plain)
        _level(axes, level)
        axes.set_xlabel("step")
        axes.set_ylabel(axis)
        return _svg(figure, title)


@contextmanager
def _drawing(salt: str, height: float = 3.0) -> Iterator[tuple[Any, Any]]:
    """A figure of its own under this page's style; no global figure, no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The salt keeps names of shapes apart: all figures share one page. It also makes them the same every time.
    with rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.4, height))
        yield figure, figure.add_subplot()


def _ends(distortions: Sequence[float]) -> tuple[float, float]:
    """Decimal logarithms of the axis' ends; a decade on the left is kept for zero."""
    positive = [d for d in distortions if d > 0] or [1.0]
    low, high = log10(min(positive)), log10(max(positive))
    low -= 0.8 if len(positive) < len(distortions) else 0.1
    return low, max(high, low + 1)


def _where(distortion: float, ends: tuple[float, float]) -> float:
    return distortion if distortion > 0 else float(10 ** ends[0])


def _threat(axes: Any, points: Sequence[Point], threat: str, mark: tuple[str, str, str, str], at: Any) -> None:
    marker, fill, line, colour = mark
    family: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: p.distortion):
        family.setdefault(point.defense.partition("(")[0], []).append(point)
    for members in family.values():
        # Only strengths of one and the same defense are joined: between two defenses there is nothing to read off.
        axes.plot([at(p.distortion) for p in members], [p.mean for p in members], linestyle=line, color=colour,
                  linewidth=0.9)
    axes.errorbar(
        [at(p.distortion) for p in points], [p.mean for p in points],
        [[max(p.mean - p.low, 0) for p in points], [max(p.high - p.mean, 0) for p in points]],
        linestyle="none", marker=marker, markersize=6, color=colour, elinewidth=0.9, capsize=2.5,
        markerfacecolor=colour if fill == "full" else "none", label=_short(threat))


def _decades(axes: Any, ends: tuple[float, float], zero: bool) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    first = ceil(ends[0] + 0.35) if zero else ceil(ends[0])
    powers = range(first, floor(ends[1] + 0.05) + 1, max(1, ceil((ends[1] - ends[0]) / 6)))
    places = ([10 ** ends[0]] if zero else []) + [10.0**p for p in powers]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels((["0"] if zero else []) + [f"{10.0**p:g}" for p in powers])


def _level(axes: Any, level: Level | None) -> None:
    if level is None:
        return
    axes.axhline(level.value, color=INK, linewidth=0.9, linestyle=(0, (6, 2, 1, 2)))
    axes.annotate(level.name, (1, level.value), xycoords=("axes fraction", "data"), xytext=(0, 3),
                  textcoords="offset points", ha="right", va="bottom", fontsize=9)


def _name_defenses(axes: Any, points: Sequence[Point], ends: tuple[float, float]) -> None:
    """Slanted names above the plot, pushed apart where strengths are close, each with a line to its place."""
    mean: dict[str, list[float]] = {}
    for point in points:
        mean.setdefault(point.defense, []).append(_where(point.distortion, ends))
    places = sorted((sum(found) / len(found), name) for name, found in mean.items())
    left, right = (log10(x) for x in axes.get_xlim())
    gap = min(0.085, 1 / max(len(places), 1))
    at = [(log10(x) - left) / (right - left) for x, _ in places]
    shown: list[float] = []
    for place in at:
        shown.append(max(place, shown[-1] + gap) if shown else place)
    for i in reversed(range(len(shown))):
        shown[i] = min(shown[i], 1 - gap * (len(shown) - 1 - i))
    for (_, name), place, label in zip(places, at, shown, strict=True):
        axes.plot([place, label], [1.0, 1.05], transform=axes.transAxes, color=INK, linewidth=0.5, clip_on=False)
        axes.plot([place, place], [0, 1], transform=axes.transAxes, color=INK, linewidth=0.3, alpha=0.25)
        axes.text(label - 0.015, 1.06, _short(name), transform=axes.transAxes, rotation=38, ha="left", va="bottom",
                  rotation_mode="anchor", fontsize=9)


def _plain(value: float, place: int) -> str:
    return f"{value:g}".replace("-", "−") if abs(value) > 1e-4 or value == 0 else f"{value:.0e}".replace("-0", "-")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _svg(figure: Any, title: str) -> Markup:
    """Only what a browser needs: no prologue, no global styles, no names that would clash within the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.04,
                   metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r' id="\w+_\d+"|font-family: [^;"]*; ?| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    width = re.search(r'width="([\d.]+)pt"', text)
    size = f"width:{float(width[1]) / 12.5:.1f}rem" if width else ""
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text)
    text = text.replace(INK, "currentColor")
    text = re.sub(r"\s+", " ", text).replace("> <", "><")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}" style="{size}"', 1))
