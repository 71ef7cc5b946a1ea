"""How a captured update is to be replayed, and what stands in the way: each finding with its remedy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak.capture.format import Note, Training
from gradleak.capture.rounding import unrounded

FLAT = 0.02
"""Entries whose sizes differ by less than this share (relative to their median) are called equal: Adam's first step."""

HUGE = 1e12
"""No rate, momentum or weight decay is as large."""

ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


@dataclass(frozen=True)
class Finding:
    """Something about an update that its replay must heed. `blocks` if no replay here can follow it."""

    what: str
    evidence: str
    remedy: str
    blocks: bool = True


@dataclass(frozen=True)
class Reading:
    """An update as an attack takes it: in units of a gradient, with the client and defense that replay it."""

    update: Mapping[str, Tensor]
    client: str
    defense: str
    count: int | None
    findings: tuple[Finding, ...]


def reading(
    note: Note, update: Mapping[str, Tensor], before: Mapping[str, Tensor], rate: float | None = None,
) -> Reading:
    """Undo what can be undone (rate, weight decay, a first step's momentum), name the rest."""
    training = note.training
    found = [*_optimiser(note), *_loss(training), *_precision(training, update), *_steps(note)]
    values = {name: value.float() for name, value in update.items()}
    if note.sent == "difference" and (training.steps or 1) == 1 and not note.defense:
        values = unrounded(values, before)
    defense = note.defense or "none"
    told = training.optimiser or {}
    pace = rate if rate is not None else _number(told.get("lr"))
    if note.sent == "difference" and pace:
        values = {name: value / pace for name, value in values.items()}
    decay = _number(told.get("weight_decay"))
    if note.sent == "difference" and decay and (training.steps or 1) == 1:
        values = {name: v - decay * before[name].float() if name in before else v for name, v in values.items()}
    if note.sent == "difference" and (told.get("name") in ADAM or (not told and flat(update))) and defense == "none":
        values, defense = {name: torch.sign(value) for name, value in values.items()}, "sign"
    return Reading(values, _client(note, pace), defense, note.count, tuple(found))


def _client(note: Note, pace: float | None) -> str:
    mode = f"mode={note.training.mode or 'train'}"
    steps = note.training.steps or 1
    if note.sent == "difference" and steps > 1 and pace:
        sizes = set(note.training.counts)
        batch = f", batch={sizes.pop()}" if len(sizes) == 1 else ""
        return f"local_steps(steps={steps}, rate={pace!r}{batch}, {mode})"
    return f"one_step({mode})"


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < HUGE:
        return None
    return float(value)


def _optimiser(note: Note) -> Iterator[Finding]:
    told, steps = note.training.optimiser, note.training.steps or 1
    if told is None or note.sent == "gradient":
        return
    name, fresh = str(told.get("name")), bool(told.get("fresh"))
    if name in ADAM:
        single = fresh and steps == 1
        when = "in its first step" if single else "in a later step than its first"
        yield Finding(
            "Adam", f"the client's optimiser is {name}, {when}",
            "a first step of Adam has the size of its rate everywhere, so it is attacked as defense=sign" if single else
            "Adam divides by a history nobody sent; capture the gradient (leave optimiser.step() out of the block), or "
            "the first step of a fresh optimiser", blocks=not single)
    elif name != "SGD":
        yield Finding("another optimiser", f"the client's optimiser is {name}",
                      "capture the gradient: leave optimiser.step() out of the block")
    momentum = _number(told.get("momentum")) or 0.0
    if name == "SGD" and momentum and (steps > 1 or not fresh):
        before = "" if fresh else " that came from earlier rounds"
        yield Finding("momentum", f"SGD with momentum {momentum:g}{before}" + (f", {steps} steps" if steps > 1 else ""),
                      "clients here replay plain SGD; set momentum=0 for the audit, or capture the gradient")
    decay = _number(told.get("weight_decay")) or 0.0
    if decay:
        undone = steps == 1
        yield Finding("weight decay", f"weight_decay = {decay:g}", "taken out of the update" if undone else
                      "set weight_decay=0 for the audit: over several steps it cannot be taken out", blocks=not undone)


def _loss(training: Training) -> Iterator[Finding]:
    loss = training.loss
    if loss is None:
        return
    smooth, name = _number(loss.get("label_smoothing")) or 0.0, str(loss.get("name"))
    if name not in ("cross_entropy", "nll_loss"):
        yield Finding("another loss", f"the client minimises {name}",
                      "replays use cross-entropy: audit with that loss, or give a model whose outputs make it so")
    if smooth:
        yield Finding("label smoothing", f"label_smoothing = {smooth:g}",
                      "set label_smoothing=0 for the audit, or let the attack search for soft labels: dlg")
    if loss.get("reduction") == "sum":
        yield Finding("sum of losses", "reduction = 'sum'", "only the scale differs: cosine attacks do not mind (ig)",
                      blocks=False)
    if loss.get("weight"):
        yield Finding("class weights", "the loss weighs classes", "set weight=None for the audit")


def _precision(training: Training, update: Mapping[str, Tensor]) -> Iterator[Finding]:
    short = {str(v.dtype).removeprefix("torch.") for v in update.values()} & {"float16", "bfloat16"}
    if training.precision in ("float16", "bfloat16"):
        short.add(training.precision)
    if not short and update and all(bool(torch.equal(v, v.half().float())) for v in update.values() if v.any()):
        short = {"float16"}
    if short:
        kind = sorted(short)[0]
        yield Finding("mixed precision", f"computed or sent in {kind}", "exact attacks need float32: train the audited "
                      "round in float32, or attack by matching (ig, dlg)")


def _steps(note: Note) -> Iterator[Finding]:
    training, steps = note.training, note.training.steps or 1
    passes = len(training.counts)
    if steps > 1:
        rate = _number((training.optimiser or {}).get("lr"))
        yield Finding("several local steps", f"{steps} optimiser steps between the weights sent and those returned",
                      "exact attacks need one step: capture the first one alone; " + (
                          "matching attacks (ig, dlg) replay it as local_steps(...)" if rate else
                          "for matching attacks say --client 'local_steps(steps=..., rate=...)'"))
    elif passes > 1:
        yield Finding("accumulated gradients", f"{passes} forward passes to one step", "the same as one larger batch",
                      blocks=False)


def flat(update: Mapping[str, Tensor]) -> bool:
    """Whether all entries that are not zero are of one size: the mark of Adam's first step, and of signs."""
    sizes = torch.cat([v.detach().float().abs().flatten()[:10_000] for v in update.values()] or [torch.zeros(0)])
    sizes = sizes[sizes > 0]
    if len(sizes) < 10:
        return False
    middle = sizes.median()
    return bool(((sizes - middle).abs() <= FLAT * middle).float().mean() > 0.9)
