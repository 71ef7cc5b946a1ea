"""Where a model uses its weights: the inputs and output gradients of every layer, from any model, by one mechanism."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.factored import Factored, Value
from gradleak.twice import gelu, linear
from gradleak.types import Params


class Untapped(Exception):
    """A weight is used in a way that is not followed here: multiply gradients out instead."""


class Reached(Exception):
    """All that was asked for has been seen: the rest of the model need not run."""


class Use(NamedTuple):
    """One use of a weight: what went in (or nothing), and where its output is among those recorded."""

    kind: str
    inputs: Tensor | None
    output: int


class Tap(TorchFunctionMode):
    """Follows linear layers, normalisations and look-ups; any other use of a parameter is remembered as strange."""

    def __init__(self, params: Params, until: frozenset[str] = frozenset(), twice: bool = False) -> None:
        """Stop when all of `until` have been seen; `twice`: what is computed will be differentiated twice."""
        super().__init__()
        self.until, self.twice = until, twice
        self.names = {id(value): name for name, value in params.items()}
        self.uses: dict[str, list[Use]] = {}
        self.outputs: list[Tensor] = []
        self.strange: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        follow = _FOLLOWED.get(func)
        if follow is not None:
            return follow(self, *args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        # A view of a weight (a slice, `weight.T`) would be used without being known for one.
        if isinstance(result, Tensor) or getattr(func, "__name__", "") not in _HARMLESS:
            for value in (*args, *(kwargs or {}).values()):
                for each in value if isinstance(value, list | tuple) else (value,):
                    if id(each) in self.names:
                        self.strange.add(self.names[id(each)])
        return result

    def record(self, output: Tensor, **used: tuple[str, Tensor | None, Tensor | None]) -> Tensor:
        """Remember an output with the weights that made it: (kind, weight, inputs)."""
        found = [(kind, self.names[id(weight)], inputs) for kind, weight, inputs in used.values()
                 if weight is not None and id(weight) in self.names]
        if not found:
            return output
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        for kind, name, inputs in found:
            self.uses.setdefault(name, []).append(Use(kind, inputs, len(self.outputs)))
        self.outputs.append(output)
        if self.until and self.until <= self.uses.keys():
            raise Reached
        return output


def _linear(tap: Tap, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return tap.record(linear(x, weight, bias), weight=("linear", weight, x), bias=("bias", bias, None))


def _addmm(tap: Tap, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return tap.record(torch.addmm(bias, x, weight), weight=("flipped", weight, x), bias=("bias", bias, None))


def _layer_norm(
    tap: Tap, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if weight is None or (id(weight) not in tap.names and id(bias) not in tap.names):
        return F.layer_norm(x, shape, weight, bias, eps)
    plain = F.layer_norm(x, shape, None, None, eps)
    output = plain * weight if bias is None else torch.addcmul(bias, plain, weight)
    return tap.record(output, weight=("scale", weight, plain), bias=("bias", bias, None))


def _gelu(tap: Tap, x: Tensor, approximate: str = "none") -> Tensor:
    return gelu(x) if tap.twice and approximate == "none" else F.gelu(x, approximate=approximate)


def _embedding(tap: Tap, ids: Tensor, weight: Tensor, *more: Any, **options: Any) -> Tensor:
    return tap.record(F.embedding(ids, weight, *more, **options), weight=("rows", weight, ids))


def _times(tap: Tap, one: Any, other: Any) -> Tensor:
    """A vector of weights times what it scales: how models write other normalisations."""
    weight, x = (one, other) if id(one) in tap.names else (other, one)
    product: Tensor = torch.mul(one, other)
    if id(weight) not in tap.names:
        return product
    if not isinstance(x, Tensor) or weight.ndim != 1 or x.shape[-1:] != weight.shape or id(x) in tap.names:
        tap.strange.add(tap.names[id(weight)])
        return product
    return tap.record(product, weight=("scale", weight, x))


_FOLLOWED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.linear: _linear, torch.addmm: _addmm, F.layer_norm: _layer_norm, F.gelu: _gelu, F.embedding: _embedding,
    torch.mul: _times, Tensor.mul: _times, Tensor.__mul__: _times, Tensor.__rmul__: _times,
}
_HARMLESS = frozenset({"__get__", "size", "dim", "numel", "is_floating_point"})
"""Looks at a parameter, does not compute with it, as long as no tensor comes of it."""


def tapped(loss: Callable[[Params], Tensor], params: Params, lanes: int) -> dict[str, Value]:
    """The gradient of the mean loss of each of `lanes` equal parts of the batch, factored where weights allow.

    Differentiable in the batch wherever gradients are being recorded. The parts lie one after the other along the
    batch, and no layer may mix them.
    """
    wanted = torch.is_grad_enabled()
    leaves = {name: value.detach() for name, value in params.items()}
    with torch.enable_grad():
        tap = Tap(leaves, twice=wanted)
        with tap:
            value = loss(leaves)
        if tap.strange:
            raise Untapped(f"{sorted(tap.strange)[0]} is used in a way that is not followed")
        deltas = torch.autograd.grad(value * lanes, tap.outputs, create_graph=wanted, allow_unused=True)
    found: dict[str, Value] = {}
    for name, uses in tap.uses.items():
        parts = [_part(leaves[name], use, deltas[use.output], lanes) for use in uses]
        found[name] = _sum(name, [part for part in parts if part is not None] or [_zero(leaves[name], lanes)])
    return found


def inputs(
    loss: Callable[[Params], Tensor], params: Params, names: frozenset[str], graph: bool = False,
) -> dict[str, Tensor]:
    """What reaches the named layers; nothing behind the last of them is computed. With its `graph` where that is
    wanted: differentiable in the batch."""
    leaves = {name: value.detach() for name, value in params.items()}
    tap = Tap(leaves, names)
    with torch.set_grad_enabled(graph):
        try:
            with tap:
                loss(leaves)
        except Reached:
            pass
    found = {name: use.inputs for name in names for use in tap.uses.get(name, ())}
    if missing := sorted(name for name in names if found.get(name) is None):
        raise Untapped(f"{missing[0]} is not used as a layer is")
    return {name: value if graph else value.detach() for name, value in found.items() if value is not None}


class Layer(NamedTuple):
    """A linear layer by its weight; `flipped` where that is inputs x outputs."""

    name: str
    flipped: bool = False


def layers(loss: Callable[[Params], Tensor], params: Params) -> list[tuple[Layer, ...]]:
    """The linear layers in the order of use, those given one and the same input together."""
    leaves = {name: value.detach() for name, value in params.items()}
    tap = Tap(leaves)
    with torch.no_grad(), tap:
        loss(leaves)
    found: dict[int, tuple[int, list[Layer]]] = {}
    for name, uses in tap.uses.items():
        if uses[0].kind in ("linear", "flipped"):
            together = found.setdefault(id(uses[0].inputs), (uses[0].output, []))[1]
            together.append(Layer(name, uses[0].kind == "flipped"))
    return [tuple(together) for _, together in sorted(found.values())]


def _zero(weight: Tensor, lanes: int) -> Tensor:
    return weight.new_zeros(lanes, *weight.shape)


def _part(weight: Tensor, use: Use, delta: Tensor | None, lanes: int) -> Value | None:
    """One use's share of a weight's gradient, lane by lane."""
    if delta is None:
        return None
    if use.inputs is None:
        return _laned(delta, lanes).sum(1)
    if use.kind == "scale":
        return _laned(delta * use.inputs, lanes).sum(1)
    if use.kind == "rows":
        ids = use.inputs.expand(delta.shape[:-1]).reshape(lanes, -1)
        return Factored(ids, delta.reshape(lanes, ids.shape[1], -1), rows=len(weight))
    return Factored(_laned(use.inputs, lanes), _laned(delta, lanes), flipped=use.kind == "flipped")


def _laned(rows: Tensor, lanes: int) -> Tensor:
    """R x N x width. Every view is a step of the graph: none where the rows lie so already."""
    return rows if rows.ndim == 3 and len(rows) == lanes else rows.reshape(lanes, -1, rows.shape[-1])


def _sum(name: str, parts: list[Value]) -> Value:
    """A weight used several times: the factors side by side are the sum of the products."""
    total = parts[0]
    for part in parts[1:]:
        if isinstance(total, Factored) and isinstance(part, Factored):
            if (total.flipped, total.rows) != (part.flipped, part.rows):
                raise Untapped(f"{name} is used both as a table and as a layer")
            total = total.plus(part)
        elif isinstance(total, Tensor) and isinstance(part, Tensor):
            total = total + part
        else:
            raise Untapped(f"{name} is used in two different ways")
    return total
