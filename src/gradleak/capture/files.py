"""Updates and weights in files: data from strangers, checked before use, never executed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gradleak import registry
from gradleak.capture.format import Note, cut, names, read, tensors, usable
from gradleak.capture.models import Known, known
from gradleak.capture.reading import Finding, Reading, reading
from gradleak.errors import UsageError
from gradleak.spec import parse
from gradleak.threats import Threat
from gradleak.types import Know, Observation, Params, Release, Update


@dataclass(frozen=True)
class Said:
    """How an update came about, as far as the caller says; None leaves it to the capture, or to what is usual."""

    model: str | None = None
    params: Path | None = None
    shape: str | None = None
    classes: int | None = None
    count: int | None = None
    client: str | None = None
    defense: str | None = None
    rate: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Opened:
    """An update with everything that is known about it."""

    note: Note
    known: Known
    before: Params
    read: Reading


def load(path: Path, like: Params, also: Params) -> Update:
    """Tensors by parameter name, refused unless names, shapes and values fit the model; `also` may be there or not."""
    wanted = {name: tuple(value.shape) for name, value in {**also, **like}.items()}
    found = names(path)
    missing, extra = sorted(set(like) - set(found)), sorted(set(found) - set(wanted))
    if extra or missing:
        raise UsageError(f"{path}: parameter names do not fit the model (missing: "
                         f"{', '.join(missing[:3]) or 'none'}; unknown: {', '.join(map(cut, extra[:3])) or 'none'}); "
                         "check --model, or rename them")
    kept = {}
    for name, value in tensors(path, wanted):
        if name in like and not usable(value):
            raise UsageError(f"{path}: {name} holds NaN, infinite or non-float values; nothing can be matched to it")
        kept[name] = value.to(like[name]) if name in like else value
    return kept


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) != 3 or not all(0 < side <= 4096 for side in shape):
        raise UsageError(f"--shape {text!r}: channels, height and width, as in 3,32,32")
    return shape


def open_update(path: Path, said: Said) -> Opened:
    """A captured folder, or a bare safetensors file of a gradient, with the model it belongs to."""
    captured = read(path) if path.is_dir() else None
    note = captured.note if captured else Note("gradient")
    file = captured.update if captured else path
    before = said.params or (captured.before if captured else None)
    model = said.model or note.model
    if model is None:
        raise UsageError(f"{path}: which model? say it with --model, as in an audit: lenet, python('mine:build'), ...")
    shape = _shape(said.shape or ",".join(map(str, note.shape or (3, 32, 32))))
    found = known(model, note.task, shape, said.classes or note.classes or 10, before, names(file), said.seed)
    params = found.learner.params
    update = {name: value for name, value in load(file, params, found.others).items() if name in params}
    read_as = reading(note, update, params, said.rate)
    count = said.count or read_as.count or 1
    client, defense = said.client or read_as.client, said.defense or read_as.defense
    if said.defense is not None and said.defense != read_as.defense:
        note = replace(note, defense=said.defense)
        read_as = reading(note, update, params, said.rate)
    findings = (*read_as.findings, *_left_out(found))
    return Opened(note, found, params, replace(read_as, client=client, defense=defense, count=count, findings=findings))


def _left_out(found: Known) -> list[Finding]:
    if not found.unsent:
        return []
    return [Finding(
        "missing parameters", f"{len(found.unsent)} of the model's trainable parameters are not in the update "
        f"({', '.join(found.unsent[:3])}{', ...' if len(found.unsent) > 3 else ''})",
        "they are taken as frozen: right for adapters and frozen layers; if they were trained, capture them too",
        blocks=False)]


def observe(opened: Opened) -> Observation:
    """The attacker's view: the defense is what the caller or the capture says it was."""
    learner, read_as = opened.known.learner, opened.read
    part = registry.build("client", parse(read_as.client))
    facts = {Know.COUNT: read_as.count, Know.LOCAL_STEPS: dict(part.protocol), Know.DEFENSE: read_as.defense}
    release = Release(learner.params, read_as.update, learner.shape, learner.classes, facts, opened.known.vocabulary,
                      partial(part.sites, learner))
    threat = Threat("informed", frozenset({Know.DEFENSE}))
    return threat.observe(release, part.of(learner), registry.build("defense", parse(read_as.defense)))


def norms(update: Mapping[str, Tensor]) -> float:
    return float(torch.stack([v.double().square().sum() for v in update.values()]).sum().sqrt())
