"""Inner products and differences of factored gradients, each layer by the cheapest of three ways.

Low rank: the observed layer is a product of thin matrices, and nothing weight-sized is touched. Gram: one pass over the
observed layer. Multiplied: the gradient itself, outside the graph; for many tokens, and for whatever needs entries.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradleak.factored import Factored, Low, Reference, Stacked, unmasked

SMALL = 2**14
"""Entries up to which gradients are copied to be taken together."""

FEW = 256
"""Tokens up to which layers of one shape are copied to be taken together: more keep a processor busy by themselves."""


class Products(NamedTuple):
    """Per lane and parameter <G, R> and |G|^2; per parameter |R|^2."""

    dots: Tensor
    squares: Tensor
    sizes: Tensor

    def weighed(self, weights: Tensor) -> "Products":
        """As if every parameter, replayed and observed, had been multiplied by the root of its weight."""
        return Products(self.dots * weights, self.squares * weights, self.sizes * weights)


class Differences(NamedTuple):
    """Per lane and parameter, the sum of squares and of magnitudes of G - R."""

    squares: Tensor
    magnitudes: Tensor


class _Group(NamedTuple):
    """Layers of one shape, taken together: many small multiplications become one."""

    names: list[str]
    values: list[Factored]
    way: str

    def given(self, reference: Reference) -> tuple[object, ...]:
        """What the way needs of the observed layers."""
        pairs = list(zip(self.names, self.values, strict=True))
        if self.way != "low":
            return ([reference[name].mT if value.flipped else reference[name] for name, value in pairs],)
        key = tuple(self.names)
        if key not in reference.stacks:
            lows = [_oriented(reference.low[name], value.flipped) for name, value in pairs]
            widest = max(low.left.shape[1] for low in lows)
            reference.stacks[key] = (torch.stack([_widened(low.left, widest) for low in lows]),
                                     torch.stack([_widened(low.right.mT, widest) for low in lows]))
        return reference.stacks[key]

    def factors(self) -> list[Tensor]:
        return [value.inputs for value in self.values] + [value.deltas for value in self.values]


def products(stacked: Stacked, reference: Reference) -> Products:
    """What cosine and l2 need; parameters a lane has no gradient for count as zero."""
    stacked = unmasked(stacked)
    names: list[str] = []
    found: list[tuple[Tensor, Tensor]] = []
    ways = {"low": _LowRank, "gram": _Gram, "multiplied": _Multiplied}
    for group in _groups(stacked, reference, None):
        names += group.names
        found.append(_applied(ways[group.way], group, reference))
    for several, together in _alike(stacked, reference):
        names += several
        found.append(_whole(together, reference.flat(several)))
    for name, value in stacked.items():
        if isinstance(value, Factored) and value.rows and name in reference:
            names.append(name)
            dots, squares = _looked_up(value, reference[name])
            found.append((dots[None], squares[None]))
    dots, squares = (_in_order(names, list(part), reference) for part in zip(*found, strict=True))
    return Products(dots, squares, reference.all_sizes)


def differences(stacked: Stacked, reference: Reference) -> Differences:
    """What l1 needs: every entry, but none of them in the graph."""
    squares: dict[str, Tensor] = {}
    magnitudes: dict[str, Tensor] = {}
    for group in _groups(stacked, reference, "multiplied"):
        found = _applied(_Entries, group, reference)
        squares.update(zip(group.names, found[0], strict=True))
        magnitudes.update(zip(group.names, found[1], strict=True))
    for name, value in stacked.items():
        if name in reference and name not in squares:
            off = ((value if isinstance(value, Tensor) else value.dense()) - reference[name]).flatten(1)
            squares[name], magnitudes[name] = off.square().sum(1), off.abs().sum(1)
    for name in reference:
        if name not in squares:
            like = next(iter(squares.values()))
            squares[name] = reference.sizes[name].expand_as(like)
            magnitudes[name] = reference[name].abs().sum().expand_as(like)
    return Differences(_table(squares, reference), _table(magnitudes, reference))


def crossed(stacked: Stacked, other: Stacked, reference: Reference) -> Tensor:
    """Per lane and parameter, the inner product with another update of one lane."""
    found: dict[str, Tensor] = {}
    mine, theirs = unmasked(stacked), unmasked(other)
    for name in reference:
        one, two = mine.get(name), theirs.get(name)
        if isinstance(one, Tensor) and isinstance(two, Tensor):
            found[name] = one.flatten(1) @ two.flatten()
        elif isinstance(one, Factored) and isinstance(two, Factored):
            if one.rows:
                inputs = (one.inputs[:, :, None] == two.inputs[:, None, :]).to(one.deltas)
            else:
                inputs = one.inputs @ two.inputs[0].mT
            found[name] = (inputs * (one.deltas @ two.deltas[0].mT)).sum((1, 2))
    return _table(found, reference)


def _applied(way: type[torch.autograd.Function], group: _Group, reference: Reference) -> tuple[Tensor, Tensor]:
    apply: Callable[..., tuple[Tensor, Tensor]] = way.apply
    return apply(len(group.names), group.given(reference), *group.factors())


def _alike(stacked: Stacked, reference: Reference) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Gradients that are not factored, those of one small size together (K x R x size): models have many."""
    sizes: dict[int, list[str]] = {}
    for name, value in stacked.items():
        if isinstance(value, Tensor) and name in reference:
            size = value.numel() // len(value)
            if size > SMALL:
                yield (name,), value.flatten(1)[None]
            else:
                sizes.setdefault(size, []).append(name)
    for names in sizes.values():
        yield tuple(names), torch.stack([cast(Tensor, stacked[name]).flatten(1) for name in names])


def _in_order(names: list[str], parts: list[Tensor], reference: Reference) -> Tensor:
    """A column a parameter of the reference (R x P), from rows of some of them (K x R each): all at once, as every view
    of a single column would be a step of the graph."""
    rows, there = torch.cat(parts), set(names)
    missing = [name for name in reference if name not in there]
    if missing:
        rows = torch.cat([rows, rows.new_zeros(len(missing), rows.shape[1])])
    return rows[reference.places((*names, *missing))].mT


def _table(columns: dict[str, Tensor], reference: Reference) -> Tensor:
    like = next(iter(columns.values()))
    return torch.stack([columns[name] if name in columns else torch.zeros_like(like) for name in reference], 1)


def _looked_up(value: Factored, reference: Tensor) -> tuple[Tensor, Tensor]:
    """For an embedding table only the rows that were looked up count."""
    dots = (reference[value.inputs] * value.deltas).sum((1, 2))
    same = (value.inputs[:, :, None] == value.inputs[:, None, :]).to(value.deltas)
    return dots, (same * (value.deltas @ value.deltas.mT)).sum((1, 2))


def _groups(stacked: Stacked, reference: Reference, way: str | None) -> list[_Group]:
    found: dict[tuple[object, ...], _Group] = {}
    for name, value in stacked.items():
        if isinstance(value, Factored) and not value.rows and name in reference:
            chosen = way or _cheapest(value, reference.low.get(name))
            many = math.prod(value.deltas.shape[:-1]) > FEW
            key = (chosen, value.inputs.shape, value.deltas.shape, name if many else "")
            group = found.setdefault(key, _Group([], [], chosen))
            group.names.append(name)
            group.values.append(value)
    return list(found.values())


def _cheapest(value: Factored, low: Low | None) -> str:
    """By multiplications; passes over weight-sized tensors count for what they take."""
    (_, n, i), o = value.inputs.shape, value.deltas.shape[-1]
    cost = {"gram": 4 * n * i * o + 4 * n * n * (i + o), "multiplied": i * o * (6 * n + 160)}
    if low is not None:
        cost["low"] = 4 * n * (n + low.left.shape[1]) * (i + o)
    return min(cost, key=lambda name: cost[name])


def _oriented(low: Low, flipped: bool) -> Low:
    return Low(low.right.mT, low.left.mT) if flipped else low


def _widened(matrix: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[1]))


def _stacks(k: int, factors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Inputs (K x R x N x i) and deltas (K x R x N x o); one layer is not copied."""
    if k == 1:
        return factors[0][None], factors[1][None]
    return torch.stack(factors[:k]), torch.stack(factors[k:])


def _times(rows: Tensor, matrices: Tensor) -> Tensor:
    """K x R x N x i times a matrix a layer (K x i x o): without a copy of it for every lane."""
    return (rows.flatten(1, 2) @ matrices).reshape(*rows.shape[:3], -1)


def _wide(numbers: Tensor) -> Tensor:
    return numbers[..., None, None]


def _whole(together: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    if together.shape[-1] > SMALL:
        return _Whole.apply(together, observed)  # type: ignore[no-any-return, no-untyped-call]
    return (together @ observed[..., None])[..., 0], torch.linalg.vecdot(together, together)


class _Whole(torch.autograd.Function):
    """Gradients as they are (K x R x size), with the observed ones (K x size): their slope is made in two passes."""

    @staticmethod
    def forward(ctx: Any, together: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(together, observed)
        return (together @ observed[..., None])[..., 0], torch.linalg.vecdot(together, together)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, None]:
        together, observed = ctx.saved_tensors
        return (a[..., None] * observed[:, None]).addcmul_((2 * b)[..., None], together), None


class _LowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: int, given: tuple[Tensor, Tensor], *factors: Tensor) -> tuple[Tensor, Tensor]:
        (left, right), (x, d) = given, _stacks(k, factors)
        u, w, xx, dd = _times(x, right), _times(d, left), x @ x.mT, d @ d.mT
        ctx.save_for_backward(left, right, x, d, u, w, xx, dd)
        return (u * w).sum((2, 3)), (xx * dd).sum((2, 3))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        left, right, x, d, u, w, xx, dd = ctx.saved_tensors
        into_x = _times(_wide(a) * w, right.mT) + (_wide(2 * b) * dd) @ x
        into_d = _times(_wide(a) * u, left.mT) + (_wide(2 * b) * xx) @ d
        return None, None, *into_x, *into_d


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: int, given: tuple[list[Tensor]], *factors: Tensor) -> tuple[Tensor, Tensor]:
        (layers,), (x, d) = given, _stacks(k, factors)
        p = torch.stack([one @ layer.mT for one, layer in zip(x, layers, strict=True)])
        xx, dd = x @ x.mT, d @ d.mT
        ctx.layers = layers
        ctx.save_for_backward(x, d, p, xx, dd)
        return (p * d).sum((2, 3)), (xx * dd).sum((2, 3))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        x, d, p, xx, dd = ctx.saved_tensors
        into_x = (_wide(2 * b) * dd) @ x
        for place, layer in enumerate(ctx.layers):
            into_x[place] += (_wide(a[place]) * d[place]) @ layer
        into_d = _wide(a) * p + (_wide(2 * b) * xx) @ d
        return None, None, *into_x, *into_d


class _Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: int, given: tuple[list[Tensor]], *factors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.k, ctx.layers = k, given[0]
        grads = [d.mT @ x for x, d in zip(factors[:k], factors[k:], strict=True)]
        ctx.save_for_backward(*factors, *grads)
        dots = [g.flatten(1) @ layer.flatten() for g, layer in zip(grads, ctx.layers, strict=True)]
        return torch.stack(dots), torch.stack([torch.linalg.vecdot(g.flatten(1), g.flatten(1)) for g in grads])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        k, saved = ctx.k, ctx.saved_tensors
        slopes = [torch.addcmul(_wide(a[i]) * ctx.layers[i], _wide(2 * b[i]), saved[2 * k + i]) for i in range(k)]
        return None, None, *[saved[k + i] @ slopes[i] for i in range(k)], *[saved[i] @ slopes[i].mT for i in range(k)]


class _Entries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: int, given: tuple[list[Tensor]], *factors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.k = k
        offs = [torch.baddbmm(layer.expand(len(x), *layer.shape), d.mT, x, beta=-1)
                for x, d, layer in zip(factors[:k], factors[k:], given[0], strict=True)]
        ctx.save_for_backward(*factors, *offs)
        flat = [off.flatten(1) for off in offs]
        return torch.stack([torch.linalg.vecdot(f, f) for f in flat]), torch.stack([f.norm(p=1, dim=1) for f in flat])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        k, saved = ctx.k, ctx.saved_tensors
        slopes = []
        for i, off in enumerate(saved[2 * k :]):
            slopes.append(torch.sign(off).mul_(_wide(b[i])).addcmul_(_wide(2 * a[i]), off))
        return None, None, *[saved[k + i] @ slopes[i] for i in range(k)], *[saved[i] @ slopes[i].mT for i in range(k)]
