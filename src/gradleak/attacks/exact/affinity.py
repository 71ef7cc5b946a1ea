"""Which tokens stood in one sentence, told by what attention's gradient says of each.

Token t's query changes the loss by dq_t = sum_j ds_tj k_j over the tokens j of its own sentence, head by head; its key
by dk_t = sum_j ds_jt q_j. The changes ds_t of a softmax sum to 0. Of all ways to write dq_t as a mix of keys the one
with the fewest tokens, the same in all heads, names the token's neighbours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.span import oriented
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.tap import Layer

ASKED = 4
"""Made-up sentences by which the heads are found."""

CLOSE = 1e-3
"""Relative difference up to which a made-up sentence is explained."""

SPARSE = 0.8
"""The power of a neighbour's size that is minimised: below 1 prefers few neighbours to many small ones."""

ROUNDS = 8

ROWS = 32
"""Tokens whose neighbours are found together."""


@dataclass(frozen=True)
class Attention:
    """The three first layers by what they do, and into how many heads their outputs fall."""

    query: Layer
    key: Layer
    value: Layer
    heads: int

    def split(self, x: Tensor) -> Tensor:
        """Outputs (T x d) by head (H x T x d/H)."""
        return x.reshape(len(x), self.heads, -1).transpose(0, 1)


def attention(door: Entrance) -> Attention:
    """Found by asking the model. A sentence of one token gives back its value; in one of two the second token sees
    v_0 + a (v_1 - v_0), with one a for each head; and a follows from its query and the two keys."""
    if len(door.first) != 3 or len({door.seen.params[layer.name].shape for layer in door.first}) != 1:
        raise Unsuited("the first layers are not a query, a key and a value of one size: which tokens belong to one "
                       "sentence cannot be told; a batch of one needs no telling")
    usable = door.vocabulary.usable.nonzero().flatten()
    pairs = usable[torch.randint(len(usable), (ASKED, 2), generator=(Rng(0) / "heads").torch())]
    behind = _behind(door)
    x, mixed = (seen.reshape(ASKED, 2, -1) for seen in door.reach(pairs, door.first[0].name, behind.name))
    (alone,) = door.reach(pairs[:, :1], behind.name)
    outputs = [outcome(door, layer, x) for layer in door.first]
    apart = [_relative(out[:, 0], alone.reshape(ASKED, -1)) for out in outputs]
    value = min(range(3), key=lambda place: apart[place])
    if apart[value] > CLOSE:
        raise Unsuited("what lies behind the first layers is no mix of one of their outputs: this is not attention")
    one, two = (place for place in range(3) if place != value)
    heads, weights = _heads(outputs[value], mixed[:, 1])
    guesses = {pair: _weights(outputs[pair[0]], outputs[pair[1]], heads) for pair in ((one, two), (two, one))}
    query, key = min(guesses, key=lambda pair: _relative(guesses[pair], weights))
    if _relative(guesses[query, key], weights) > 0.05:
        raise Unsuited("attention's weights are not a softmax of queries and keys")
    return Attention(door.first[query], door.first[key], door.first[value], heads)


def outcome(door: Entrance, layer: Layer, x: Tensor) -> Tensor:
    """What a layer makes of its inputs, in float64."""
    weight = door.seen.params[layer.name].detach().double()
    bias = door.seen.params.get(layer.name.removesuffix("weight") + "bias")
    out = x.double() @ (weight if layer.flipped else weight.mT)
    return out if bias is None else out + bias.detach().double()


def deltas(door: Entrance, x: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """How the loss changes with each token's query and key (T x d each), when x (T x d) is all that the layers were
    given."""
    inverse = torch.linalg.pinv(x.double())
    query, key = ((inverse.mT @ oriented(door.seen.update, layer).mT) for layer in (how.query, how.key))
    return query, key


def affinity(door: Entrance, x: Tensor, dq: Tensor, dk: Tensor, how: Attention) -> Tensor:
    """How strongly every two tokens are tied (T x T, symmetric). Rows of x are what the layers were given, those of dq
    and dk how the loss changes with the queries and keys made of them."""
    keys, queries = (how.split(outcome(door, layer, x)) for layer in (how.key, how.query))
    ties = _neighbours(how.split(dq.double()), keys, True) + _neighbours(how.split(dk.double()), queries, False)
    return ties + ties.mT


def _neighbours(targets: Tensor, sources: Tensor, level: bool) -> Tensor:
    """The share every source has in every target (T x T, rows sum to 1), both H x T x w, each target a mix of few
    sources, the same in all heads; `level` where a mix sums to 0."""
    parts = sources.mT  # H x w x T
    if level:
        size = parts.square().sum(1).sqrt().mean()
        parts = torch.cat([parts, size.expand(len(parts), 1, parts.shape[2])], 1)
        targets = torch.cat([targets, targets.new_zeros(*targets.shape[:2], 1)], 2)
    starts = range(0, targets.shape[1], ROWS)
    return torch.cat([_focused(targets[:, start : start + ROWS], parts) for start in starts])


def _focused(targets: Tensor, parts: Tensor) -> Tensor:
    """Least squares again and again, each time with the weights of the last solution: small sources fade (FOCUSS)."""
    goal = targets.transpose(0, 1)  # n x H x w
    weights = goal.new_ones(goal.shape[0], parts.shape[2])
    eye, share = torch.eye(parts.shape[1], dtype=parts.dtype), weights
    for number in range(ROUNDS):
        weighed = parts * weights[:, None, None]  # n x H x w x T
        inner = weighed @ parts.mT
        inner = inner + 1e-6 * inner.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * eye
        mix = torch.linalg.solve(inner, goal)[..., None, :] @ weighed  # n x H x 1 x T
        size = mix[..., 0, :].square().sum(1)
        size = size / size.sum(1, keepdim=True).clamp_min(1e-300)
        weights = (size + 1e-8 * 0.3**number) ** (1 - SPARSE / 2)
        weights = weights / weights.amax(1, keepdim=True)
        share = size.sqrt()
    return share / share.sum(1, keepdim=True).clamp_min(1e-300)


def _behind(door: Entrance) -> Layer:
    """The layer that attention's mix is given to."""
    after = door.groups[door.groups.index(door.first) + 1 :]
    if not after:
        raise Unsuited("no layer lies behind the first ones")
    return after[0][0]


def _heads(values: Tensor, mixed: Tensor) -> tuple[int, Tensor]:
    """The fewest heads in which each mix is one of two values, and its weights (n x H)."""
    width = values.shape[-1]
    step, moved = values[:, 1] - values[:, 0], mixed - values[:, 0]
    if moved.shape != step.shape:
        raise Unsuited("attention's mix is not as wide as its values")
    for heads in (number for number in range(1, width + 1) if width % number == 0):
        s, m = (part.reshape(len(part), heads, -1) for part in (step, moved))
        weights = (s * m).sum(-1) / s.square().sum(-1).clamp_min(1e-300)
        if _relative(weights[..., None] * s, m) < CLOSE and heads < width:
            return heads, weights
    raise Unsuited("attention's heads cannot be told apart")


def _weights(queries: Tensor, keys: Tensor, heads: int) -> Tensor:
    """How much of the second token the second token sees (n x H)."""
    q, k = (part.reshape(len(part), 2, heads, -1) for part in (queries, keys))
    return torch.sigmoid((q[:, 1] * (k[:, 1] - k[:, 0])).sum(-1) / q.shape[-1] ** 0.5)


def _relative(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one - other).norm() / other.norm().clamp_min(1e-300))


def strangers(places: Tensor, closing: Tensor) -> Tensor:
    """Which tokens cannot be of one sentence: those of one place, and what stands behind a token that closes one."""
    behind = closing[:, None] & (places[:, None] < places)
    return (places[:, None] == places) | behind | behind.mT


def families(
    ties: Tensor, places: Tensor, apart: Tensor, count: int | None = None, least: float = 0.03,
) -> list[list[int]]:
    """Tokens put together, the two most strongly tied groups first (mean over their pairs), until so many groups are
    left, or none tied by `least`; never two tokens that are apart. Largest first, in the order of places."""
    ties, apart = ties.clone(), apart.clone()
    groups = [[token] for token in range(len(ties))]
    sizes = torch.ones(len(ties), dtype=ties.dtype)
    alive = len(groups)
    while alive > (count or 1):
        open_ties = ties.masked_fill(apart, -1.0)
        best = int(open_ties.argmax())
        one, other = divmod(best, len(ties))
        if float(open_ties[one, other]) < (0 if count else least):
            break
        whole = sizes[one] + sizes[other]
        merged = (sizes[one] * ties[one] + sizes[other] * ties[other]) / whole
        ties[one], ties[:, one] = merged, merged
        apart[one] |= apart[other]
        apart[:, one] = apart[one]
        apart[other], apart[:, other] = True, True
        sizes[one] = whole
        groups[one] += groups[other]
        groups[other] = []
        alive -= 1
    ordered = [sorted(group, key=lambda token: int(places[token])) for group in groups if group]
    return sorted(ordered, key=len, reverse=True)
