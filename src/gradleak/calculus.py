"""Differentiation in one place: a client's gradient, for one candidate or for many at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import torch
from torch import Tensor

from gradleak.factored import Stacked, dense
from gradleak.tap import Layer, inputs, layers, tapped
from gradleak.types import Batch, Params, Replay, Update

_inside_lanes: ContextVar[bool] = ContextVar("inside_lanes", default=False)
_factored_lanes: ContextVar[int] = ContextVar("factored_lanes", default=0)
_question: ContextVar[Callable[[Callable[[Params], Tensor], Params], object] | None] = ContextVar("asked", default=None)


class Answered(Exception):
    """Carries an answer out of a replay that need not go on."""

    def __init__(self, answer: object) -> None:
        self.answer = answer


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
    if ask := _question.get():
        raise Answered(ask(loss, params))
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


def peek(replay: Replay, batch: Batch, *names: str) -> list[Tensor]:
    """What reaches the named layers when the client's first step meets such a batch, at the cost of what lies before
    them. Any client and any defense will do: all begin with a gradient."""
    wanted = frozenset(names)
    found = cast(dict[str, Tensor], _asked(replay, batch, lambda loss, params: inputs(loss, params, wanted)))
    return [found[name] for name in names]


def precise(replay: Replay, batch: Batch, *names: str) -> list[Tensor]:
    """The client's first gradient of the named weights in float64, before any defense."""

    def ask(loss: Callable[[Params], Tensor], params: Params) -> list[Tensor]:
        wide = {name: value.detach().double().requires_grad_(name in names) for name, value in params.items()}
        with torch.enable_grad():
            return list(torch.autograd.grad(loss(wide), [wide[name] for name in names]))

    return cast(list[Tensor], _asked(replay, Batch(batch.x.double(), batch.y, batch.extra), ask))


def layout(replay: Replay, batch: Batch) -> list[tuple[Layer, ...]]:
    """The model's linear layers in the order of use, those given one and the same input together."""
    return cast(list[tuple[Layer, ...]], _asked(replay, batch, layers))


def _asked(replay: Replay, batch: Batch, ask: Callable[[Callable[[Params], Tensor], Params], object]) -> object:
    token = _question.set(ask)
    try:
        replay(batch)
    except Answered as answered:
        return answered.answer
    finally:
        _question.reset(token)
    raise RuntimeError("this replay takes no gradient")


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
