"""From rows to a decision: what each defense setting lets through, what it costs, and which one to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gradleak.audit.plan import Cell
from gradleak.audit.utility import Interval, Utility
from gradleak.audit.verdict import Row, Verdict, lead, settings, together, worst
from gradleak.metrics.summary import Summary
from gradleak.threats import threat
from gradleak.types import Metric

GUESSING = 0.05
"""Matthews's correlation of a model that has learnt next to nothing."""

Costs = Mapping[tuple[str, str], Utility]
"""By task and defense."""

HELD_IS_NOT = ("HELD is evidence, not proof: these attacks, with this knowledge, on these batches, explained the "
               "updates by something else; another attack, more knowledge or another batch may still read the data")


@dataclass(frozen=True)
class Setting:
    """One defense on one task, over every attacker and batch size of the audit.

    It HELD only if it did against each attacker, or against one who knows more where the search of one failed.
    """

    task: str
    client: str
    defense: str
    verdict: Verdict
    metric: Metric | None
    leakage: Summary | None
    """Of the row that leaked most."""
    distortion: float
    epsilon: float | None
    utility: Utility | None
    front: bool = False
    """No other setting lets less through at no more cost."""

    @property
    def worth(self) -> Interval | None:
        return self.utility.leading if self.utility else None


def weighed(rows: Sequence[Row], costs: Costs) -> list[Setting]:
    """Every setting, in the order of the audit, the Pareto front marked among those whose cost is known."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell.task, row.cell.client, row.cell.defense), []).append(row)
    found = [_setting(place, group, costs.get((place[0], place[2]))) for place, group in groups.items()]
    return [replace(one, front=_on_front(one, found)) for one in found]


def _setting(place: tuple[str, str, str], group: Sequence[Row], cost: Utility | None) -> Setting:
    metric = lead([m for m in group[0].cell.scorers() if any(m.name in r.scores for r in group)])
    scored = [r.scores[metric.name] for r in group if metric and metric.name in r.scores]
    most = None
    if scored and metric:
        most = (max if metric.better == "higher" else min)(scored, key=lambda s: s.mean)
    changes = [r.distortion for r in group if r.distortion is not None]
    verdict = worst(_that_count([(t[0], together(r.verdict for r in t)) for t in settings(group).values()]))
    return Setting(*place, verdict, metric, most, sum(changes) / len(changes) if changes else 0.0,
                   next((r.epsilon for r in group if r.epsilon is not None), None), cost)


def _that_count(targets: Sequence[tuple[Row, Verdict]]) -> list[Verdict]:
    """An attacker whose search failed leaves no doubt where one who knows all that it does, and more, was held off."""
    held = [row.cell for row, verdict in targets if verdict is Verdict.HELD]
    return [verdict for row, verdict in targets if verdict is not Verdict.INCONCLUSIVE
            or not any(_knows_more(other, row.cell) for other in held)]


def _knows_more(one: Cell, other: Cell) -> bool:
    return one.batch == other.batch and threat(one.threat).knows > threat(other.threat).knows


def _on_front(one: Setting, every: Sequence[Setting]) -> bool:
    mine = _place(one)
    if mine is None:
        return False
    others = [place for s in every if s.task == one.task and (place := _place(s)) is not None]
    return not any(o[0] <= mine[0] and o[1] >= mine[1] and o != mine for o in others)


def _place(one: Setting) -> tuple[float, float] | None:
    """Leakage, the lower the better, and worth."""
    if one.leakage is None or one.worth is None or one.metric is None:
        return None
    sign = 1 if one.metric.better == "higher" else -1
    return sign * one.leakage.mean, one.worth.mean


@dataclass(frozen=True)
class Advice:
    """A recommendation for one task, or why there is none."""

    task: str
    defense: str | None
    sentence: str


def advise(found: Sequence[Setting]) -> list[Advice]:
    """One a task and client. Only a setting that HELD is ever recommended."""
    groups: dict[tuple[str, str], list[Setting]] = {}
    for one in found:
        groups.setdefault((one.task, one.client), []).append(one)
    return [_advice(group) for group in groups.values()]


def _advice(group: Sequence[Setting]) -> Advice:
    held = [one for one in group if one.verdict is Verdict.HELD]
    if not held:
        return Advice(group[0].task, None, _nothing(group))
    best = max(held, key=lambda one: (one.worth.mean if one.worth else -1.0, -one.distortion))
    bare = next((one for one in group if one.defense == "none"), None)
    if best.defense == "none":
        return Advice(best.task, "none", "Without a defense nothing was read here, so that none is recommended on this "
                                         f"evidence. {HELD_IS_NOT}.")
    said = (f"Recommended: {best.defense}, the weakest setting that held here, against every attacker or one who knows "
            f"more; {_cost(best, bare)}. {HELD_IS_NOT}.")
    if best.epsilon is not None and isfinite(best.epsilon):
        said += f" Its differential privacy, epsilon {best.epsilon:.3g}, holds whatever the attack."
    return Advice(best.task, best.defense, said)


def _nothing(group: Sequence[Setting]) -> str:
    counts = {verdict: sum(one.verdict is verdict for one in group) for verdict in Verdict}
    said = [f"{n} {'leak' if n > 1 else 'leaks'}" if v is Verdict.LEAKS else f"{n} stayed {v.lower()}"
            for v, n in counts.items() if n]
    return (f"No setting can be recommended: of {len(group)}, {', '.join(said)}, and only what held is. "
            "Try stronger settings; give inconclusive ones a larger budget.")


def _cost(best: Setting, bare: Setting | None) -> str:
    if best.utility is None or best.worth is None:
        return "its cost was not measured (add utility = 'federated(rounds=300)')"
    name, worth = best.utility.lead, best.worth
    said = f"{name} {worth.mean:.3f} [{worth.low:.3f}, {worth.high:.3f}]"
    if bare is not None and bare.worth is not None:
        said += f" beside {bare.worth.mean:.3f} without a defense, {_points(bare.worth.mean - worth.mean)}"
    if best.utility.mcc.low <= GUESSING:
        said += "; the model is then hardly better than guessing, so that the cost may be all of it"
    return f"it costs: {said}"


def _points(lost: float) -> str:
    return f"a loss of {100 * lost:.1f} points" if lost > 0 else f"a gain of {-100 * lost:.1f} points"
