"""Leakage over training: the same audit at several points of it."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from gradleak.audit.verdict import Row
from gradleak.report import plots
from gradleak.report.measures import leading, measure
from gradleak.spec import Call, parse


def stage(task: str) -> tuple[str, int]:
    """A task without its `train`, and how many steps that was."""
    call = parse(task)
    steps = dict(call.kwargs).get("train", 0)
    rest = tuple(item for item in call.kwargs if item[0] != "train")
    return repr(Call(call.name, call.args, rest)), steps if isinstance(steps, int) else 0


def over_training(rows: Sequence[Row]) -> Iterator[tuple[str, Markup]]:
    """One plot an attack and batch size that was tried at more than one point of training."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        cell = row.cell
        if leading(row).name in row.scores:
            groups.setdefault((stage(cell.task)[0], cell.client, cell.batch, cell.attack), []).append(row)
    for (task, _, batch, attack), group in groups.items():
        steps = sorted({stage(row.cell.task)[1] for row in group})
        if len(steps) < 2:
            continue
        metric = leading(group[0])
        lines: dict[str, dict[int, plots.Span]] = {}
        for row in group:
            score = row.scores[metric.name]
            name = f"{row.cell.defense}, {row.cell.threat}"
            lines.setdefault(name, {})[stage(row.cell.task)[1]] = plots.Span(score.mean, score.low, score.high)
        level = None if metric.leak_at is None else plots.Level(metric.leak_at, "leaks from here")
        name = f"{attack}, batch {batch}"
        yield f"{name}, {task}", plots.training(lines, steps, measure(metric.name).axis, level,
                                                f"Leakage over training: {name}, {task}")
