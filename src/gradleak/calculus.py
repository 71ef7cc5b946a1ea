"""Differentiation in one place: a client's gradient, for one candidate or for many at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import cast

import torch
from torch import Tensor

from gradleak.factored import Factored, Stacked, Value, dense, unmasked
from gradleak.rng import Rng
from gradleak.tap import Layer, Untapped, inputs, layers, tapped
from gradleak.twice import Twice
from gradleak.types import Batch, Client, Params, Replay, Update

_inside_lanes: ContextVar[bool] = ContextVar("inside_lanes", default=False)
_factored_lanes: ContextVar[int] = ContextVar("factored_lanes", default=0)
_undefended: ContextVar[bool] = ContextVar("undefended", default=False)
_straight: ContextVar[bool] = ContextVar("straight", default=False)
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


def undefended(replay: Replay) -> Replay:
    """The replay without what defenses do to entries: for those who ask only about directions, which rounding blurs
    and does not turn. Nothing has to be multiplied out then."""
    return _while(_undefended, replay)


def straight(replay: Replay) -> Replay:
    """The replay with local steps that all begin at the weights sent: what small ones come to. One gradient is enough
    then."""
    return _while(_straight, replay)


def going_straight() -> bool:
    """For clients that take several steps: whether they are all to begin at the weights sent."""
    return _straight.get()


def _while(wish: ContextVar[bool], replay: Replay) -> Replay:
    def wished(batch: Batch) -> Update:
        token = wish.set(True)
        try:
            return replay(batch)
        finally:
            wish.reset(token)

    return wished


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
        with Twice() if wanted else nullcontext():
            value = loss(leaves)
        grads = torch.autograd.grad(value, list(leaves.values()), create_graph=wanted, materialize_grads=True)
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


def representation(client: Client, params: Params, batch: Batch) -> tuple[Layer, Tensor]:
    """The last linear layer of the client's model, and what reaches it, differentiable in the batch."""

    def ask(loss: Callable[[Params], Tensor], leaves: Params) -> tuple[Layer, Tensor]:
        found = layers(loss, leaves)
        if not found:
            raise Untapped("the model has no linear layer")
        last = found[-1][-1]
        return last, inputs(loss, leaves, frozenset({last.name}), graph=True)[last.name]

    return cast(tuple[Layer, Tensor], _asked(lambda b: client(params, b, None), batch, ask))


def each_lane(change: Callable[[Update], Update], update: Update) -> Update:
    """Change an update, or, while `factoring`, the update of every lane; that needs entries."""
    if _undefended.get():
        return update
    lanes = _factored_lanes.get()
    if not lanes:
        return change(update)
    whole = dense(cast(Stacked, update))
    if lanes > 1:
        return torch.vmap(change)(whole)
    return {name: value[None] for name, value in change({k: v[0] for k, v in whole.items()}).items()}


def averaged(client: Client, params: Params, batch: Batch, rng: Rng | None, clients: int) -> Update:
    """The mean of what several clients send who share the batch out among themselves, each in its own stream."""
    lanes = _factored_lanes.get() or 1
    places = torch.arange(len(batch.x), device=batch.x.device).reshape(lanes, -1)
    shares = [part.flatten() for part in places.tensor_split(min(clients, places.shape[1]), 1)]
    total: dict[str, Value] = {}
    for who, rows in enumerate(shares):
        own = Batch(batch.x[rows], batch.y[rows], {name: value[rows] for name, value in batch.extra.items()})
        sent = unmasked(cast(Stacked, client(params, own, rng / "client" / who if rng else None)))
        for name, value in sent.items():
            part, before = value * (1 / len(shares)), total.get(name)
            total[name] = part if before is None else _added(before, part)
    return cast(Update, total)


def _added(one: Value, other: Value) -> Value:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one + other
    if not (isinstance(one, Factored) and isinstance(other, Factored)):
        raise Untapped("a layer is factored for one client and not for another")
    return one.plus(other)


def clipped_mean(client: Client, params: Params, batch: Batch, bound: float) -> Update:
    """The mean of what the client sends for each example alone, each scaled to a length of at most `bound`.

    Where the model's layers can be followed, no example's gradient is ever multiplied out.
    """
    if _question.get():
        return client(params, batch, None)
    lanes = _factored_lanes.get()
    if lanes or not _inside_lanes.get():
        try:
            found = _clipped_factored(client, params, batch, bound, lanes)
            return found if lanes else {k: found.get(k, torch.zeros_like(v)) for k, v in params.items()}
        except Untapped:
            if lanes:
                raise
    each = each_alone(lambda one: client(params, one, None), batch)
    weights = _to_bound(sum(v.flatten(1).square().sum(1) for v in each.values()), bound)
    return {name: torch.tensordot(weights, value, 1) / len(batch.x) for name, value in each.items()}


def _to_bound(squares: Tensor | int, bound: float) -> Tensor:
    """The factor that brings each length down to the bound."""
    return torch.clamp(bound / torch.as_tensor(squares).clamp_min(1e-30).sqrt(), max=1.0)


def _clipped_factored(client: Client, params: Params, batch: Batch, bound: float, lanes: int) -> Update:
    count = len(batch.x)
    with factoring(count):
        each = unmasked(cast(Stacked, client(params, batch, None)))
    if any(isinstance(v, Tensor) and v.shape != (count, *params[name].shape) for name, v in each.items()):
        raise Untapped("the client takes its examples in turn")
    squares = sum(v.flatten(1).square().sum(1) if isinstance(v, Tensor) else v.sq_norm() for v in each.values())
    weights, into = _to_bound(squares, bound) * (lanes or 1) / count, lanes or 1
    found: dict[str, Value] = {}
    for name, value in each.items():
        if isinstance(value, Tensor):
            weighed = value * weights.reshape(-1, *[1] * (value.ndim - 1))
            found[name] = weighed.reshape(into, -1, *value.shape[1:]).sum(1)
        else:
            found[name] = value.regrouped(weights, into)
    return cast(Update, found) if lanes else {name: value[0] for name, value in dense(found).items()}


def each_alone(client: Callable[[Batch], Update], batch: Batch) -> Update:
    """What the client sends for each example, along a first axis: at once, or else in turn."""
    parts = (batch.x, batch.y, *batch.extra.values())

    def one(x: Tensor, y: Tensor, *more: Tensor) -> Update:
        return client(Batch(x[None], y[None], {k: v[None] for k, v in zip(batch.extra, more, strict=True)}))

    try:
        return in_lanes(one, *parts)
    except RuntimeError:
        updates = [one(*row) for row in zip(*parts, strict=True)]
        return {name: torch.stack([update[name] for update in updates]) for name in updates[0]}


def inside_lanes() -> bool:
    """Whether many candidates are being computed at once."""
    return _inside_lanes.get()


def in_lanes(function: Callable[..., Update], *tensors: Tensor) -> Update:
    """Apply to every slice along the first axis at once."""
    token = _inside_lanes.set(True)
    try:
        return torch.vmap(function, randomness="different")(*tensors)
    finally:
        _inside_lanes.reset(token)
