"""A model as a pure function of its parameters."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradleak.errors import UsageError
from gradleak.norms import Moments, Statistics, note
from gradleak.rng import Rng
from gradleak.types import Batch, Params, Site
from gradleak.world.dropout import Dropped
from gradleak.world.slots import Slots

Mode = Literal["train", "eval"]

DROP = "drop."
"""How the masks among a batch's extras are named: by the place of their site in the order of calls."""


class Learner:
    """The model every party knows, with its cross-entropy loss; weights are passed in, never kept.

    `shape` is that of one example; `example` a small batch where one of ones of that shape will not do. `prefix` is
    what an adapter around the user's model puts before its parameters' names: outside, it is never seen.
    """

    def __init__(
        self, module: nn.Module, shape: tuple[int, ...], classes: int, example: Batch | None = None, prefix: str = "",
    ) -> None:
        self.shape, self.classes, self.prefix = shape, classes, prefix
        self.params: Params = {
            n.removeprefix(prefix): p.detach() for n, p in module.named_parameters() if p.requires_grad}
        if not self.params:
            raise UsageError("the model has no trainable parameters: no update would be sent; unfreeze some")
        self.kind = next(iter(self.params.values())).dtype
        self.frozen = {name: value for name, value in (*module.named_parameters(), *module.named_buffers())
                       if value.is_floating_point() and not value.requires_grad}
        self.modes: dict[Mode, nn.Module] = {"train": _without_running_statistics(module), "eval": _twin(module).eval()}
        self._slots = {mode: Slots(twin) for mode, twin in self.modes.items()}
        if example is None:
            x = torch.ones(2, *shape).to(next(iter(self.params.values())))
            example = Batch(x, torch.zeros(2, dtype=torch.long))
        self.drops = True
        if not self._controlled(example):
            raise UsageError("the model draws random numbers of its own in training, other than dropout: no replay can "
                             "follow it; take them out for the audit")
        self.drops = bool(self.sites(example, "train"))
        self.norms = any(isinstance(part, _BatchNorm) for part in module.modules())
        self.statistics: Statistics = {
            name: Moments(part.running_mean.detach(), part.running_var.detach())
            for name, part in _batch_norms(module) if part.running_mean is not None and part.running_var is not None}
        """Of the data the model was trained on, as far as it carries any."""
        for twin in self.modes.values():
            for name, part in _batch_norms(twin):
                part.register_forward_pre_hook(partial(_noted, name))

    def logits(self, params: Params, batch: Batch, mode: Mode, rng: Rng | None = None) -> Tensor:
        """Masks among the batch's extras are used where given; without them and without a stream nothing drops."""
        masks, rest = _split(batch.extra)
        if mode == "eval" or not self.drops:  # nothing to watch for, and watching every call takes time
            return self._called(params, batch.x, rest, mode)
        with Dropped(rng, masks):
            return self._called(params, batch.x, rest, mode)

    def _called(self, params: Params, x: Tensor, extra: Mapping[str, Tensor], mode: Mode) -> Tensor:
        named = {self.prefix + name: value for name, value in params.items()}
        kind = next(iter(params.values())).dtype
        if kind != self.kind:  # asked in another precision: what is frozen must follow
            named = {**{name: value.to(kind) for name, value in self.frozen.items()}, **named}
        return self._slots[mode].called(named, x, **extra)  # type: ignore[no-any-return]

    def loss(self, params: Params, batch: Batch, mode: Mode, rng: Rng | None = None) -> Tensor:
        return cross_entropy(self.logits(params, batch, mode, rng), batch.y)

    def sites(self, batch: Batch, mode: Mode) -> tuple[Site, ...]:
        """Where the model drops on such a batch, in the order of calls."""
        return tuple(self._watched(batch, mode, None).sites)

    def masks(self, batch: Batch, mode: Mode, rng: Rng) -> dict[str, Tensor]:
        """What that stream drops, as extras: with them the batch replays the client to the bit."""
        return {f"{DROP}{number}": mask for number, mask in enumerate(self._watched(batch, mode, rng).drawn)}

    def _watched(self, batch: Batch, mode: Mode, rng: Rng | None) -> Dropped:
        watch = Dropped(rng)
        with torch.no_grad(), watch:
            self._called(self.params, batch.x, without_masks(batch.extra), mode)
        return watch

    @torch.no_grad()
    def _controlled(self, batch: Batch) -> bool:
        """Whether every draw of a forward pass comes from the stream: twice the same stream, twice the same output."""
        one, other = (self.logits(self.params, batch, "train", Rng(0)) for _ in range(2))
        return bool(torch.equal(one, other))


def _batch_norms(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]


def _noted(name: str, part: Any, given: tuple[Tensor, ...]) -> None:
    own = part.training or part.running_mean is None or part.running_var is None
    note(name, given[0], None if own else Moments(part.running_mean, part.running_var))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Its mean over the examples, or over the places of a language model (B x P x V) that have a next token.

    `y` holds class numbers (-100: none) or soft labels (all zero: none).
    """
    if logits.ndim == 2:
        return F.cross_entropy(logits, y)
    if not y.is_floating_point():
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())
    counted = (y.detach().sum(-1) > 0).sum().clamp_min(1)
    return -(y * logits.log_softmax(-1)).sum() / counted


def without_masks(extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The extras that say what the data are, not what was dropped."""
    return _split(extra)[1]


def _split(extra: Mapping[str, Tensor]) -> tuple[dict[int, Tensor], dict[str, Tensor]]:
    masks = {int(name.removeprefix(DROP)): value for name, value in extra.items() if name.startswith(DROP)}
    return masks, {name: value for name, value in extra.items() if not name.startswith(DROP)}


def _twin(module: nn.Module) -> nn.Module:
    """A copy in all but its tensors, which both hold: a large model is in memory once."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared).requires_grad_(False)


def _without_running_statistics(module: nn.Module) -> nn.Module:
    """A training twin that normalises by the batch and updates no buffer, so that it is a pure function."""
    twin = _twin(module).train()
    for part in twin.modules():
        if isinstance(part, _BatchNorm):
            part.running_mean = part.running_var = part.num_batches_tracked = None
            part.track_running_stats = False
    return twin
