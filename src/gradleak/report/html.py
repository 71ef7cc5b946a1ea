"""One self-contained page: the verdicts first, then what came back, then how it was measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from gradleak.audit.plan import Cell
from gradleak.audit.store import CellDir, Run, read_json, to_toml, write_whole
from gradleak.audit.verdict import MEANING, Row, Verdict, exit_code, settings, together
from gradleak.errors import GradleakError
from gradleak.report import interactive, plots
from gradleak.report.economics import economics, frontiers, leakage
from gradleak.report.measures import attacks_together, by_lead, columns, leading, measure, of_text
from gradleak.report.members import Share, members
from gradleak.report.rows import rows
from gradleak.report.samples import Sample, samples
from gradleak.report.sentences import Said, Stage, emergence
from gradleak.report.stages import over_training
from gradleak.report.terminal import epsilon
from gradleak.threats import PROTOCOL, threat
from gradleak.types import Know, Metric

MOST_SAMPLES = 24
"""Samples a cell; more would make a page too heavy to send around."""

MOST_DRAWN = 40
"""Cells of a page whose steps are drawn: with more, the slider must do."""

ROOM = 2_800_000
"""Bytes that the samples of such a page take together."""

NEGLIGIBLE = 1e-9
"""A residual below this is rounding."""

SYMBOL = {Verdict.LEAKS: "▲", Verdict.HELD: "✓", Verdict.INCONCLUSIVE: "?", Verdict.UNRELIABLE: "!"}

EXIT = {0: "every setting held", 1: "at least one setting leaks", 2: "the command or the audit file cannot be used",
        3: "nothing leaked, but at least one setting is inconclusive or unreliable"}

SECRETS = {
    Know.COUNT: "how many examples are behind the update", Know.LABELS: "the classes of the examples, unordered",
    Know.LENGTHS: "the length of each example", Know.NORM_STATS: "the batch's normalisation statistics",
    Know.LOCAL_STEPS: "how the client trains: steps, rate, passes", Know.DEFENSE: "the defense and its settings",
    Know.DROPOUT: "the client's dropout masks", Know.PUBLIC_DATA: "public data of the same kind",
    Know.TOKEN_FREQUENCIES: "how often each token occurs", Know.GENERATOR: "a generator of such images",
    Know.LANGUAGE_MODEL: "a language model",
}


@dataclass(frozen=True)
class Card:
    """A cell with everything there is to look at."""

    row: Row
    meaning: str
    text: bool
    samples: tuple[Sample, ...]
    omitted: int
    hidden: str | None
    """Why there is nothing to look at."""
    weakest: str | None
    plots: tuple[Markup, ...]
    emerged: tuple[Stage, ...]
    steps: str | None
    members: tuple[Share, ...] = ()
    """Of a suite, what each of its attacks did."""
    open: bool = False


@dataclass(frozen=True)
class Fact:
    """One line of the ledger: a piece of knowledge under a threat."""

    name: str
    meaning: str
    protocol: bool
    available: bool
    used: tuple[str, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """The answer in one sentence, with the counts behind it."""

    sentence: str
    counts: dict[Verdict, int]
    settings: int
    code: int


@dataclass(frozen=True)
class Footnotes:
    """Why a metric has no number, each reason once."""

    reasons: dict[str, int] = field(default_factory=dict)

    def mark(self, metric: str, row: Row) -> int | None:
        """The footnote's number, or none where the attack itself gave no answer."""
        if not row.scores:
            return None
        if metric in row.unscored:
            reason = f"{metric}: {row.unscored[metric]}"
        elif metric not in {column.metric for column in columns([row])}:
            return None
        elif metric not in {name.partition("(")[0] for name in row.cell.metrics}:
            reason = f"{metric} is not among this audit's metrics: add it to `metrics` in another audit"
        else:
            return None
        return self.reasons.setdefault(reason, len(self.reasons) + 1)


def write(run: Run, show_truth: bool = False) -> Path:
    """Write report.html into the run directory; private data are in it only with `show_truth`."""
    path = run.path / "report.html"
    write_whole(path, page(run, show_truth).encode())
    return path


def page(run: Run, show_truth: bool = False) -> str:
    """The page as text."""
    judged = rows(run)
    here = files("gradleak.report")
    code, shown = interactive.script(), cards(run, judged, show_truth)
    texts = {card.text for card in shown}
    return _template().render(
        css=Markup((here / "page.css").read_text("utf-8")), script=Markup(code), policy=interactive.policy(code),
        choices=interactive.choices(judged), facets=interactive.facets,
        audit=run.audit(), rows=judged, headline=headline(judged), cards=shown,
        economics=(bought := economics(run, judged)), frontiers=list(frontiers(bought)), leaked=leakage,
        strengths=list(strengths(judged)), stages=list(over_training(judged)),
        ledger=ledger(judged), show_truth=show_truth, footnotes=Footnotes(),
        overall=attacks_together(judged), columns=columns(judged),
        private=any(row.epsilon is not None for row in judged), sentences=True in texts,
        examples="examples" if len(texts) > 1 else "sentences" if True in texts else "images",
        meaning=MEANING, symbol=SYMBOL, exit_codes=EXIT, toml=_toml(run), environment=_environment(run),
    )


@cache
def _template() -> Template:
    """Compiled once: that takes as long as filling it in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(figure=figure, fixed=fixed, residual=residual, epsilon=epsilon)
    environment.filters["xmlattr_data"] = _data
    return environment.from_string((files("gradleak.report") / "page.html").read_text("utf-8"))


def _data(values: dict[str, str]) -> Markup:
    """As data attributes."""
    return Markup("").join(Markup(' data-{}="{}"').format(name, value) for name, value in values.items())


def figure(value: float | None, digits: int = 2) -> str:
    """A number of any size, to a few significant digits."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.{digits - 1}e}"


def fixed(value: float | None, digits: int = 1) -> str:
    """A number of a known size."""
    return "–" if value is None else f"{value:.{digits}f}"


def residual(value: float) -> str:
    """A cosine distance; what only rounding keeps from zero is said to be so."""
    return "≈0" if 0 < value < NEGLIGIBLE else figure(value)


def headline(judged: Sequence[Row]) -> Headline:
    """A setting is a batch size, a defense and a threat; attacks on it stand for each other, as for the exit code."""
    groups = settings(judged)
    verdicts = [together(row.verdict for row in group) for group in groups.values()]
    counts = {verdict: verdicts.count(verdict) for verdict in Verdict}
    leaks, total = counts[Verdict.LEAKS], len(groups)
    rest = [f"{counts[v]} {_said(v)}" for v in Verdict if counts[v] and v is not Verdict.LEAKS]
    if leaks:
        leaking = [row for row in judged if row.verdict is Verdict.LEAKS]
        first = f"{leaks} of {total} setting{'s' * (total > 1)} leak{'s' * (leaks == 1)}: {_defenses(leaking)}."
        rest = [f"Of the others, {_listed(rest)}."] if rest else []
    else:
        first = f"No leak was shown in {total} setting{'s' * (total > 1)}:"
        rest = [f"{_listed(rest)}."]
    return Headline(" ".join([first, *rest]), counts, total, exit_code(judged))


def _said(verdict: Verdict) -> str:
    return "held" if verdict is Verdict.HELD else f"stayed {verdict.lower()}"


def _defenses(leaking: Sequence[Row]) -> str:
    names = list(dict.fromkeys("no defense" if r.cell.defense == "none" else r.cell.defense for r in leaking))
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more defenses"]
    return _listed(shown) + _closest(leaking)


def _closest(leaking: Sequence[Row]) -> str:
    best = []
    for metric, group in by_lead(leaking):
        found = [row.scores[metric.name].worst for row in group if metric.name in row.scores]
        exact = any(row.scores["exact_match"].worst == 1 for row in group if "exact_match" in row.scores)
        if found:
            most = max(found) if metric.better == "higher" else min(found)
            best.append(measure(metric.name).said(most) + (", word for word" if exact else ""))
    return f"; the closest reading reaches {_listed(best)}" if best else ""


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def strengths(judged: Sequence[Row]) -> Iterator[tuple[str, Markup]]:
    """One plot a batch size and attack that brought anything back."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in judged:
        if row.scores and row.distortion is not None and isfinite(row.distortion):
            groups.setdefault((row.cell.task, row.cell.batch, row.cell.attack), []).append(row)
    several = len({task for task, _, _ in groups}) > 1
    for (task, batch, attack), group in groups.items():
        metric = leading(group[0])
        points = [plots.Point(r.cell.defense, r.cell.threat, r.distortion or 0.0, score.mean, score.low, score.high)
                  for r in group if (score := r.scores.get(metric.name)) is not None]
        name = f"{attack}, batch {batch}" + (f", {task}" if several else "")
        if points:
            axis, title = measure(metric.name).axis, f"Leakage by defense: {name}"
            yield name, plots.strength(points, axis, _threshold(metric), title)


def _threshold(metric: Metric) -> plots.Level | None:
    if metric.leak_at is None:
        return None
    return plots.Level(metric.leak_at, f"leaks from {metric.leak_at:g} {measure(metric.name).unit}".rstrip())


def cards(run: Run, judged: Sequence[Row], show_truth: bool) -> list[Card]:
    """Every cell, in the order of the table; the first one worth looking at is open."""
    folders = {cell.key: folder for cell, folder in run.cells()}
    first = next((r for r in judged if r.verdict is Verdict.LEAKS), next((r for r in judged if r.samples), None))
    room = None if len(judged) <= MOST_DRAWN else ROOM // len(judged)
    return [_card(row, _weakest(row, judged), folders, show_truth, row is first, room) for row in judged]


def _card(
    row: Row, weakest: Row | None, folders: dict[str, CellDir], show_truth: bool, opened: bool, room: int | None,
) -> Card:
    text, hidden, folder = of_text(row), None, folders[row.cell.key]
    events = folder.events()
    try:
        found = list(samples(row, weakest, folders, show_truth))
    except GradleakError as problem:
        if not text:
            raise
        # Sentences are spelled by their model, and a report of a run made elsewhere may lack it: the numbers stand.
        found, hidden = [], f"the tokens cannot be spelled here ({problem})"
    kept = _most_leaked(row, found, room)
    if found:
        text = isinstance(found[0].recovered, Said)
    return Card(row, _meaning(row.cell), text, tuple(kept), len(found) - len(kept), hidden,
                weakest.cell.defense if weakest else None, tuple(_progress(row, events)) if room is None else (),
                emergence(events) if text else (), interactive.steps(row, events) if events else None,
                tuple(members(row)), opened)


def _most_leaked(row: Row, found: list[Sample], room: int | None) -> list[Sample]:
    """Those that leaked most: so many, and on a page of many cells no more than there is room for, but one."""
    metric = leading(row)
    sign = -1 if metric.better == "higher" else 1
    ranked = sorted(range(len(found)), key=lambda i: sign * found[i].scores.get(metric.name, 0.0))[:MOST_SAMPLES]
    sizes = accumulate(found[i].size for i in ranked)
    kept = [i for n, (i, size) in enumerate(zip(ranked, sizes, strict=True)) if not n or room is None or size <= room]
    return [found[i] for i in sorted(kept)]


def _meaning(cell: Cell) -> str:
    try:
        return str(getattr(cell.defender(), "meaning", cell.defense))
    except GradleakError:
        # A report of a run made elsewhere may name a defense that is not installed here: its name must do.
        return cell.defense


def _weakest(row: Row, judged: Sequence[Row]) -> Row | None:
    """The row that shows what the same attack takes from the same batch where least is done about it."""
    cell = row.cell
    same = [r for r in judged if r.samples and r.distortion is not None
            and (r.cell.task, r.cell.client, r.cell.batch, r.cell.threat, r.cell.attack)
            == (cell.task, cell.client, cell.batch, cell.threat, cell.attack)]
    weakest = min(same, key=lambda r: (r.cell.defense != "none", r.distortion or 0.0), default=row)
    return None if weakest.cell == cell else weakest


def _progress(row: Row, events: Sequence[dict[str, Any]]) -> Iterator[Markup]:
    """How the search went: the leading metric, and the residual the attacker itself can see."""
    lead = leading(row)
    trials = sorted({event["trial"] for event in events})
    name = f"batch {row.cell.batch}, {row.cell.defense}, {row.cell.threat}, {row.cell.attack}"
    by_trial = [[e for e in events if e["trial"] == trial] for trial in trials]
    if max(map(len, by_trial), default=0) < 2:
        return
    scores = [plots.Trace([e["step"] for e in own], [e[lead.name] for e in own])
              for found in by_trial if (own := [e for e in found if lead.name in e])]
    if scores:
        title = f"{lead.name} over steps: {name}"
        yield plots.progress(scores, measure(lead.name).axis, _threshold(lead), False, title)
    residuals = [plots.Trace([e["step"] for e in own], [e["residual"][0] for e in own]) for own in by_trial]
    truth = row.residual.get("truth", 0.0)
    level = plots.Level(truth, "the truth's residual") if truth > plots.SMALLEST else None
    yield plots.progress(residuals, "residual (cosine, log)", level, True, f"Residual over steps: {name}")


def ledger(judged: Sequence[Row]) -> dict[str, list[Fact]]:
    """Under each threat: what was granted, by whom, and which attacks looked at it."""
    return {name: list(_facts(name, [r for r in judged if r.cell.threat == name]))
            for name in dict.fromkeys(r.cell.threat for r in judged)}


def _facts(name: str, own: Sequence[Row]) -> Iterator[Fact]:
    knows = threat(name).knows
    for know in sorted(knows | PROTOCOL, key=lambda k: (k not in PROTOCOL, k.value)):
        word = know.value
        used = dict.fromkeys(r.cell.attack for r in own if word in r.knowledge and word not in r.unused)
        granted = dict.fromkeys(r.cell.attack for r in own if word in r.knowledge)
        yield Fact(word, SECRETS.get(know, word), know in PROTOCOL, bool(granted), tuple(used),
                   tuple(attack for attack in granted if attack not in used))


def _toml(run: Run) -> str:
    path = run.path / "audit.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else to_toml(run.audit())


def _environment(run: Run) -> dict[str, str]:
    path = run.path / "environment.json"
    found = read_json(path) if path.is_file() else {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
