"""Differentiation in one place: a client's gradient, and many candidates replayed at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from gradleak.types import Batch, Params, Replay, Update

_inside_lanes: ContextVar[bool] = ContextVar("inside_lanes", default=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in another order are other sums: whatever must not depend on the machine is computed on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Update:
    """The gradient of a scalar in the parameters, itself differentiable wherever gradients are being recorded."""
    if _inside_lanes.get():
        return torch.func.grad(loss)(dict(params))  # type: ignore[no-any-return]
    wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in params.items()}
        grads = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=wanted, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def in_lanes(function: Callable[[Tensor, Tensor], Update], x: Tensor, y: Tensor) -> Update:
    """Apply to every slice along the first axis at once."""
    token = _inside_lanes.set(True)
    try:
        return torch.vmap(function, randomness="different")(x, y)
    finally:
        _inside_lanes.reset(token)


class Lanes:
    """Replays R candidate batches, stacked along a new first axis: at once where the model allows, else in turn.

    Whether it does is found by trying two lanes and comparing them with the plain replay.
    """

    def __init__(self, replay: Replay, x: Tensor, y: Tensor) -> None:
        self.replay = replay
        self.together = len(x) > 1 and self._agrees(x[:2].detach(), y[:2].detach())

    def _agrees(self, x: Tensor, y: Tensor) -> bool:
        try:
            with torch.no_grad():
                fast, slow = self._at_once(x, y), self._in_turn(x, y)
        except (RuntimeError, NotImplementedError):
            return False
        gap = sum(float((fast[name] - slow[name]).square().sum()) for name in slow)
        size = sum(float(slow[name].square().sum()) for name in slow)
        return gap <= 1e-6 * size

    def _at_once(self, x: Tensor, y: Tensor) -> Update:
        return in_lanes(lambda a, b: self.replay(Batch(a, b)), x, y)

    def _in_turn(self, x: Tensor, y: Tensor) -> Update:
        each = [self.replay(Batch(a, b)) for a, b in zip(x, y, strict=True)]
        return {name: torch.stack([update[name] for update in each]) for name in each[0]}

    def __call__(self, x: Tensor, y: Tensor) -> Update:
        if len(x) == 1:
            return {name: value[None] for name, value in self.replay(Batch(x[0], y[0])).items()}
        return self._at_once(x, y) if self.together else self._in_turn(x, y)
