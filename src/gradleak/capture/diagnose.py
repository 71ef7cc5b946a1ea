"""Why an update cannot be inverted as captured: what its note says, and what its numbers give away."""

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradleak.capture.files import Opened, Said, norms, open_update
from gradleak.capture.reading import Finding, flat

ROUNDING = 1e-3
"""What float32 sums leave of a number that is zero, relative to its terms."""

FAINT = 1e-4
"""A direction this much weaker than the strongest may be rounding."""


def findings(opened: Opened) -> list[Finding]:
    """Everything that stands in the way, each thing once."""
    found = {f.what: f for f in (*opened.read.findings, *_by_numbers(opened))}
    return list(found.values())


def _by_numbers(opened: Opened) -> Iterator[Finding]:
    update, learner = opened.read.update, opened.known.learner
    if norms(update) == 0:
        yield Finding("nothing sent", "every entry is zero", "capture a round in which the client trains")
        return
    if opened.note.training.optimiser is None and flat(update) and opened.read.defense == "none":
        yield Finding("Adam", "all entries have one size, as after Adam's first step, or as signs have",
                      "attack it as signs: --defense sign", blocks=False)
        return
    head = _head(opened)
    optimiser = (opened.note.training.optimiser or {}).get("name", "SGD")
    if opened.read.defense != "none" or (opened.note.sent == "difference" and optimiser != "SGD"):
        return  # what follows holds for plain gradients
    if head is not None:
        yield from _loss(head)
        yield from _examples(update[_weight_of(opened) or ""], opened)
    if learner.norms:
        yield from _norm_mode(opened)


def _head(opened: Opened) -> Tensor | None:
    """The gradient of the last bias that has an entry a class, if one was sent."""
    own = [v for v in opened.read.update.values() if v.ndim == 1 and len(v) == opened.known.learner.classes]
    return own[-1] if own else None


def _weight_of(opened: Opened) -> str | None:
    classes = opened.known.learner.classes
    own = [n for n, v in opened.read.update.items() if v.ndim == 2 and len(v) == classes]
    return own[-1] if own else None


def _loss(head: Tensor) -> Iterator[Finding]:
    """Shares of softmax add up to one, so that the last bias's gradient adds up to zero."""
    if float(head.sum().abs()) > 10 * ROUNDING * float(head.abs().sum()):
        yield Finding("another loss", f"the last bias's gradient adds up to {float(head.sum()):.2g}, not to 0 as under "
                      "cross-entropy", "replays use cross-entropy: audit with that loss")


def _examples(weight: Tensor, opened: Opened) -> Iterator[Finding]:
    """Each example adds one direction to the last layer's gradient."""
    if opened.known.vocabulary is not None and opened.known.learner.classes == len(opened.known.vocabulary.table):
        return
    values = torch.linalg.svdvals(weight.double())
    rank, count = int((values > FAINT * values[0]).sum()), opened.read.count or 1
    if rank > count and (opened.note.training.steps or 1) == 1:
        yield Finding(
            "several local steps", f"the last layer's gradient has rank {rank}; {count} example(s) in one step give at "
            f"most {count}", "say how it came about: --count, or --client 'local_steps(steps=..., rate=...)'")


def _norm_mode(opened: Opened) -> Iterator[Finding]:
    """Under a batch's own statistics a weight before BatchNorm may grow without any change: its gradient is orthogonal
    to it."""
    shares = [_along(opened, *pair) for pair in _before_norms(opened.known.module)]
    seen = [share for share in shares if share is not None]
    if not seen:
        return
    batch = sorted(seen)[len(seen) // 2] < ROUNDING
    assumed = "eval" if "mode=eval" in opened.read.client else "train"
    real = "train" if batch else "eval"
    if real != assumed:
        yield Finding(
            "BatchNorm mode", f"gradients before BatchNorm are{'' if batch else ' not'} orthogonal to their weights: "
            f"it used {'the batch' if batch else 'running'} statistics",
            f"set mode={real}: --client 'one_step(mode={real})'")


def _before_norms(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Layers whose output a BatchNorm takes next, by the order in which the model lists them."""
    last: tuple[str, int] | None = None
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            last = f"{name}.weight", part.weight.shape[0]
        elif isinstance(part, _BatchNorm) and last is not None and part.num_features == last[1]:
            yield last
            last = None


def _along(opened: Opened, name: str, width: int) -> float | None:
    """How far a gradient points along its weight, of all channels the middle one."""
    prefix = opened.known.learner.prefix
    name = name.removeprefix(prefix)
    if name not in opened.read.update:
        return None
    grad, weight = opened.read.update[name].flatten(1), opened.before[name].flatten(1)
    size = grad.norm(dim=1) * weight.norm(dim=1)
    live = size > 1e-12
    return float(((grad * weight).sum(1).abs()[live] / size[live]).median()) if bool(live.any()) else None


def diagnose(update: Path, said: Said) -> tuple[Table, int]:
    """A table of findings, and 0 if nothing stands in the way of an attack, else 3."""
    opened = open_update(update, said)
    found = findings(opened)
    table = Table(title=f"{escape(str(update))}: replayed as {escape(opened.read.client)}, defense "
                  f"{escape(opened.read.defense)}, {opened.read.count} example(s)", title_justify="left",
                  header_style="bold")
    for name in ("finding", "how it shows", "what to set"):
        table.add_column(name, overflow="fold")
    for f in sorted(found, key=lambda f: not f.blocks):
        table.add_row(escape(f.what) if f.blocks else f"[dim]{escape(f.what)}[/]", escape(f.evidence), escape(f.remedy))
    if not found:
        table.add_row("nothing", "no obstacle was found", "gradleak attack ATTACK --update " + escape(str(update)))
    return table, 3 if any(f.blocks for f in found) else 0
