"""One self-contained page: the verdicts first, then what came back, then how it was measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from gradleak.audit.plan import Cell
from gradleak.audit.store import CellDir, Run, read_json, to_toml, write_whole
from gradleak.audit.verdict import MEANING, Row, Verdict, exit_code, overall, settings, together
from gradleak.errors import GradleakError
from gradleak.report import pictures, plots
from gradleak.report.rows import rows
from gradleak.threats import PROTOCOL, threat
from gradleak.types import Know, Metric

MOST_SAMPLES = 24
"""Pictures a cell; more would make a page too heavy to send around."""

NEGLIGIBLE = 1e-9
"""A residual below this is rounding."""

SYMBOL = {Verdict.LEAKS: "▲", Verdict.HELD: "✓", Verdict.INCONCLUSIVE: "?", Verdict.UNRELIABLE: "!"}

AXIS = {"psnr": "PSNR (dB)", "ssim": "SSIM (0 to 1)", "lpips": "LPIPS (lower is closer)", "mse": "mean squared error"}

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
class Sample:
    """One private example: what came back, and how close that is."""

    name: str
    recovered: str
    weakest: str | None
    truth: str | None
    scores: dict[str, float]
    leaked: bool


@dataclass(frozen=True)
class Card:
    """A cell with everything there is to look at."""

    row: Row
    meaning: str
    samples: tuple[Sample, ...]
    omitted: int
    weakest: str | None
    plots: tuple[Markup, ...]
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
        elif metric not in {name.partition("(")[0] for name in row.cell.metrics}:
            reason = f"{metric} is not among this audit's metrics: add it to `metrics` in another audit"
        else:
            return None
        return self.reasons.setdefault(reason, len(self.reasons) + 1)


def write(run: Run, show_truth: bool = False) -> Path:
    """Write report.html into the run directory; private images are in it only with `show_truth`."""
    path = run.path / "report.html"
    write_whole(path, page(run, show_truth).encode())
    return path


def page(run: Run, show_truth: bool = False) -> str:
    """The page as text."""
    judged = rows(run)
    here = files("gradleak.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(figure=figure, fixed=fixed, residual=residual)
    return environment.from_string((here / "page.html").read_text("utf-8")).render(
        css=Markup((here / "page.css").read_text("utf-8")),
        audit=run.audit(), rows=judged, headline=headline(judged), cards=cards(run, judged, show_truth),
        strengths=list(strengths(judged)), ledger=ledger(judged), show_truth=show_truth, footnotes=Footnotes(),
        overall=overall(judged, "psnr", "higher"),
        meaning=MEANING, symbol=SYMBOL, exit_codes=EXIT, toml=_toml(run), environment=_environment(run),
    )


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
    best = max((r.scores["psnr"].worst for r in leaking if "psnr" in r.scores), default=None)
    return _listed(shown) + ("" if best is None else f"; the closest reading reaches {best:.1f} dB")


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
        metric = _lead(group[0].cell)
        points = [plots.Point(r.cell.defense, r.cell.threat, r.distortion or 0.0, score.mean, score.low, score.high)
                  for r in group if (score := r.scores.get(metric.name)) is not None]
        name = f"{attack}, batch {batch}" + (f", {task}" if several else "")
        if points:
            yield name, plots.strength(points, _axis(metric.name), _threshold(metric), f"Leakage by defense: {name}")


def _lead(cell: Cell) -> Metric:
    """The first metric about the data itself is the one that is followed over the steps."""
    scorers = cell.scorers()
    return next((m for m in scorers if getattr(m, "about", "readings") == "readings"), scorers[0])


def _axis(metric: str) -> str:
    return AXIS.get(metric, metric)


def _threshold(metric: Metric) -> plots.Level | None:
    unit = " dB" if metric.name == "psnr" else ""
    return None if metric.leak_at is None else plots.Level(metric.leak_at, f"leaks from {metric.leak_at:g}{unit}")


def cards(run: Run, judged: Sequence[Row], show_truth: bool) -> list[Card]:
    """Every cell, in the order of the table; the first one worth looking at is open."""
    folders = {cell.key: folder for cell, folder in run.cells()}
    first = next((r for r in judged if r.verdict is Verdict.LEAKS), next((r for r in judged if r.samples), None))
    return [_card(row, _weakest(row, judged), folders, show_truth, row is first) for row in judged]


def _card(row: Row, weakest: Row | None, folders: dict[str, CellDir], show_truth: bool, opened: bool) -> Card:
    samples = list(_samples(row, weakest, folders, show_truth))
    kept = samples
    if len(samples) > MOST_SAMPLES:
        lead = _lead(row.cell)
        sign = -1 if lead.better == "higher" else 1
        ranked = sorted(range(len(samples)), key=lambda i: sign * samples[i].scores.get(lead.name, 0.0))
        kept = [samples[i] for i in sorted(ranked[:MOST_SAMPLES])]
    return Card(row, _meaning(row.cell), tuple(kept), len(samples) - len(kept),
                weakest.cell.defense if weakest else None, tuple(_progress(row, folders[row.cell.key])), opened)


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


def _samples(row: Row, weakest: Row | None, folders: dict[str, CellDir], show_truth: bool) -> Iterator[Sample]:
    beside = {t["trial"]: t for t in weakest.trials} if weakest else {}
    for record in row.trials:
        trial = record["trial"]
        readings = _readings(record, folders[row.cell.key])
        others = _readings(beside[trial], folders[weakest.cell.key]) if weakest and trial in beside else []
        truths = _truths(row.cell, record["ids"]) if show_truth and readings else []
        for i, reading in enumerate(readings):
            yield Sample(
                f"trial {trial + 1}, sample {i + 1}", pictures.data_uri(reading),
                pictures.data_uri(others[i]) if i < len(others) else None,
                pictures.data_uri(truths[i]) if i < len(truths) else None,
                {name: values[i] for name, values in record["scores"].items() if i < len(values)},
                bool(record["leaked"][i]))


def _readings(record: dict[str, Any], folder: CellDir) -> list[Tensor]:
    """Recovered images, each in the place of the truth it was matched to."""
    reading = folder.guess(record["trial"]).get("reading")
    return [] if reading is None or reading.ndim != 4 else list(reading[record["match"]])


def _truths(cell: Cell, ids: Sequence[int]) -> list[Tensor]:
    return list(cell.world().secret(ids).readings)


def _progress(row: Row, folder: CellDir) -> Iterator[Markup]:
    """How the search went: the first metric, and the residual the attacker itself can see."""
    events, lead = folder.events(), _lead(row.cell)
    trials = sorted({event["trial"] for event in events})
    name = f"batch {row.cell.batch}, {row.cell.defense}, {row.cell.threat}, {row.cell.attack}"
    by_trial = [[e for e in events if e["trial"] == trial] for trial in trials]
    if max(map(len, by_trial), default=0) < 2:
        return
    scores = [plots.Trace([e["step"] for e in own], [e[lead.name] for e in own])
              for found in by_trial if (own := [e for e in found if lead.name in e])]
    if scores:
        yield plots.progress(scores, _axis(lead.name), _threshold(lead), False, f"{lead.name} over steps: {name}")
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
    return path.read_text(encoding="utf-8") if path.is_file() else to_toml(run.audit())


def _environment(run: Run) -> dict[str, str]:
    path = run.path / "environment.json"
    return {str(k): str(v) for k, v in read_json(path).items()} if path.is_file() else {}
