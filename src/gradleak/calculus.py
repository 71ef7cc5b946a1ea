"""Differentiation in one place: a client's gradient, for one candidate or for many at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import torch
from torch import Tensor

from gradleak.factored import Stacked, dense
from gradleak.tap import tapped
from gradleak.types import Params, Update

_inside_lanes: ContextVar[bool] = ContextVar("inside_lanes", default=False)
_factored_lanes: ContextVar[int] = ContextVar("factored_lanes", default=0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums: whatever must not depend on the machine is computed on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def factoring(lanes: int) -> Iterator[None]:
    """In here `gradient` gives each of so many equal parts of the batch an update of its own, stacked along a first
    axis, linear layers factored."""
    token = _factored_lanes.set(lanes)
    try:
        yield
    finally:
        _factored_lanes.reset(token)


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Update:
    """The gradient of a scalar in the parameters, itself differentiable wherever gradients are being recorded."""
    if _inside_lanes.get():
        return cast(Update, torch.func.grad(loss)(dict(params)))
    lanes = _factored_lanes.get()
    if lanes:
        return cast(Update, tapped(loss, params, lanes))
    wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in params.items()}
        grads = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=wanted, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def each_lane(change: Callable[[Update], Update], update: Update) -> Update:
    """Change an update, or, while `factoring`, the update of every lane; that needs entries."""
    lanes = _factored_lanes.get()
    if not lanes:
        return change(update)
    whole = dense(cast(Stacked, update))
    if lanes > 1:
        return torch.vmap(change)(whole)
    return {name: value[None] for name, value in change({k: v[0] for k, v in whole.items()}).items()}


def in_lanes(function: Callable[..., Update], *tensors: Tensor) -> Update:
    """Apply to every slice along the first axis at once."""
    token = _inside_lanes.set(True)
    try:
        return torch.vmap(function, randomness="different")(*tensors)
    finally:
        _inside_lanes.reset(token)
