"""What each defense buys and costs, as a table, a plot and a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradleak.audit import utility
from gradleak.audit.advice import Advice, Setting, advise, weighed
from gradleak.audit.store import Run
from gradleak.audit.utility import Interval
from gradleak.audit.verdict import Row, Verdict
from gradleak.report import plots
from gradleak.report.measures import measure
from gradleak.report.terminal import STYLE, epsilon

FAITHFUL = 40.0
"""Decibels beyond which no eye sees a difference."""


@dataclass(frozen=True)
class Economics:
    """All there is to say about settings: numbered as in the plots, which need measured costs."""

    settings: list[Setting]
    advice: list[Advice]

    @property
    def costed(self) -> bool:
        return any(one.utility for one in self.settings)

    @property
    def capped(self) -> str:
        """What the plots end at, if anything is beyond it."""
        beyond = any(one.leakage and one.metric and one.metric.name == "psnr" and one.leakage.mean > FAITHFUL
                     for one in self.settings)
        return f"{FAITHFUL:g} dB" if beyond else ""


def economics(run: Run, rows: Sequence[Row]) -> Economics:
    found = weighed(rows, utility.results(run))
    return Economics(found, advise(found))


def said(interval: Interval | None) -> str:
    """A number with its interval; a dash where there is none."""
    if interval is None or interval.mean != interval.mean:
        return "–"
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def leakage(one: Setting) -> str:
    return measure(one.metric.name).said(one.leakage.mean) if one.metric and one.leakage else "–"


def frontiers(found: Economics) -> Iterator[tuple[str, Markup]]:
    """One plot a task whose costs are known."""
    for task in dict.fromkeys(one.task for one in found.settings):
        own = [(n, one) for n, one in enumerate(found.settings, 1) if one.task == task and one.worth and one.leakage]
        if not own:
            continue
        first = own[0][1]
        assert first.utility and first.metric
        offers = [plots.Offer(n, one.worth, _drawn(one), one.verdict is Verdict.HELD, one.front)
                  for n, one in own if one.worth]
        level = None if first.metric.leak_at is None else plots.Level(first.metric.leak_at, "leaks from here")
        axis = measure(first.metric.name).axis
        yield task, plots.frontier(offers, f"{first.utility.lead} after training", axis, level,
                                   f"Leakage against utility: {task}")


def _drawn(one: Setting) -> tuple[float, float, float]:
    """Leakage as it is drawn: an exact reading's 100 dB would leave no room for the rest."""
    if one.leakage is None:
        return 0.0, 0.0, 0.0
    found = one.leakage.mean, one.leakage.low, one.leakage.high
    if one.metric is None or one.metric.name != "psnr":
        return found
    mean, low, high = (min(value, FAITHFUL) for value in found)
    return mean, low, high


def cost_table(found: Economics) -> Table:
    """One line a setting: verdict, leakage, what the trained model is worth, epsilon."""
    table = Table(title="What each defense buys and costs", title_justify="left", title_style="bold",
                  header_style="bold", box=SIMPLE_HEAD, caption_justify="left",
                  caption="leakage: of the attacker that read most; *: on the Pareto front; in brackets 95 % intervals")
    for name in ("defense", "verdict", "leakage", "accuracy", "F1", "MCC", "epsilon"):
        table.add_column(name, overflow="fold")
    for one in found.settings:
        cost = one.utility
        table.add_row(escape(one.defense) + (" *" if one.front else ""), f"[{STYLE[one.verdict]}]{one.verdict}[/]",
                      leakage(one), *(escape(said(value)) for value in (
                          (cost.accuracy, cost.f1, cost.mcc) if cost else (None, None, None))), epsilon(one.epsilon))
    return table


def print_economics(run: Run, rows: Sequence[Row], console: Console) -> None:
    """The table where costs were measured; the recommendation wherever there is a choice."""
    found = economics(run, rows)
    if found.costed:
        console.print(cost_table(found))
    for advice in found.advice:
        if len(found.settings) > 1:
            console.print(f"[bold]{escape(advice.sentence)}[/]", highlight=False)
