"""A model as a pure function of its parameters."""

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.types import Batch, Params
from gradleak.world.dropout import Dropped, controlled, sites

Mode = Literal["train", "eval"]


class Learner:
    """The classifier every party knows, with its cross-entropy loss; weights are passed in, never kept."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        self.shape, self.classes = shape, classes
        self.params: Params = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
        self.modes: dict[Mode, nn.Module] = {"train": _without_running_statistics(module), "eval": _evaluating(module)}
        if not self.params:
            raise UsageError("the model has no trainable parameters: no update would be sent")
        example = torch.ones(2, *shape).to(next(iter(self.params.values())))
        if not controlled(self.modes["train"], example):
            raise UsageError("the model draws random numbers of its own in training, other than dropout: no replay can "
                             "follow it; take them out for the audit")
        self.drops = sites(self.modes["train"], example) > 0
        self.norms = any(isinstance(part, _BatchNorm) for part in module.modules())

    def logits(self, params: Params, x: Tensor, mode: Mode, rng: Rng | None = None) -> Tensor:
        module = self.modes[mode]
        if mode == "train" and self.drops:
            with Dropped(rng):
                return functional_call(module, dict(params), (x,))  # type: ignore[no-any-return]
        return functional_call(module, dict(params), (x,))  # type: ignore[no-any-return]

    def loss(self, params: Params, batch: Batch, mode: Mode, rng: Rng | None = None) -> Tensor:
        """Mean cross-entropy; `batch.y` holds class numbers or soft labels."""
        return F.cross_entropy(self.logits(params, batch.x, mode, rng), batch.y)


def _frozen_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False)


def _evaluating(module: nn.Module) -> nn.Module:
    return _frozen_copy(module).eval()


def _without_running_statistics(module: nn.Module) -> nn.Module:
    """A training copy that normalises by the batch and updates no buffer, so that it is a pure function."""
    twin = _frozen_copy(module).train()
    for part in twin.modules():
        if isinstance(part, _BatchNorm):
            part.running_mean = part.running_var = part.num_batches_tracked = None
            part.track_running_stats = False
    return twin
