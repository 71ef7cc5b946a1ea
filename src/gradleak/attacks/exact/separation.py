"""Which tokens of a batch belong to one image, from what attention's gradients leave apart.

With tokens N (all images one below the other), one head's query gradient is W_k F and its key gradient W_q F^T plus a
multiple of the query bias, where F = N^T D N and D, the gradient of the scores, is zero between images. The tokens
that all images share are projected out. Then F = Y^T D Y with Y square, and a matrix A fulfils A^T F = F A for
all heads if A = Y^-1 T Y with T constant on each image: these A are a space with one dimension an image. The vectors
on which such an A acts as one number are the tokens of one image.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.embedded import Embedded
from gradleak.attacks.exact.span import together
from gradleak.errors import Unsuited
from gradleak.rng import Rng

WIDEST = 90
"""Patches of a batch up to which the matrix of its pairs of pairs is held in memory (half a gigabyte)."""

MORE = 4
"""Vectors iterated beyond those wanted: how the next ones compare is the certificate."""

DRAWS = 40
"""Mixtures of the space tried for the one that sets the images widest apart."""


@dataclass(frozen=True)
class Apart:
    """A basis (width x tokens) of each image's tokens, and two figures that say how far to trust it.

    `space_gap`: how much worse the next matrix fulfils the equations than those used. `group_gap`: the distance
    between images' numbers beside the spread within one.
    """

    bases: list[Tensor]
    space_gap: float
    group_gap: float


@dataclass(frozen=True)
class Head:
    """One head: what its keys (`by_query`) and queries (`by_key`) make of the coordinates, and what the gradients show
    of F that way: by_query F = query and by_key F^T = key."""

    by_query: Tensor
    query: Tensor
    by_key: Tensor
    key: Tensor

    def broken(self, matrix: Tensor) -> Tensor:
        """By how much matrix^T F = F matrix fails, as far as this head shows F."""
        return self.by_query @ matrix.T @ self.key.T - self.query @ matrix @ self.by_key.T


def separated(form: Embedded, directions: Tensor, images: int, rng: Rng) -> Apart:
    """`directions` (rows) span all tokens of the batch."""
    size = images * form.places
    if form.query.gradient is None or form.key.gradient is None:
        raise Unsuited("patches needs the gradients of the first query and key layers to tell images apart")
    rows = form.width // form.heads - max(1, len(form.fixed))
    if size > WIDEST or size**2 > form.heads * rows * (rows - 1):
        raise Unsuited(f"patches cannot tell {images} images of {form.places} patches apart: at most "
                       f"{min(WIDEST, math.isqrt(form.heads * rows * (rows - 1)))} patches in all")
    frame, stretch = _coordinates(form, directions)
    heads = _heads(form, frame, stretch)
    space, sizes = _commuting(heads, size, images, rng / "space")
    bases, gap = _groups(space, images, rng / "groups")
    whole = [torch.linalg.qr(torch.cat([frame @ (stretch[:, None] * group), form.fixed.T], 1)).Q for group in bases]
    return Apart(whole, float(sizes[images] / sizes[images - 1].clamp_min(1e-300)), gap)


def _coordinates(form: Embedded, directions: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal frame (columns) of the span without the shared tokens, along the gradients' own axes, and how far
    to stretch each: by the root of its size, so that weak directions count, but not as strong ones do."""
    kept = across(directions @ form.fixed.T)
    frame = directions.T @ kept
    sent = [part.gradient for part in (form.query, form.key, form.value) if part.gradient is not None]
    _, sizes, axes = torch.linalg.svd(together(sent) @ frame, full_matrices=False)
    stretch = sizes.clamp_min(1e-10 * float(sizes[0])).sqrt()
    return frame @ axes.T, stretch / stretch.max()


def across(columns: Tensor) -> Tensor:
    """An orthonormal basis of all that is orthogonal to the columns."""
    whole, _ = torch.linalg.qr(columns, mode="complete")
    rest: Tensor = whole[:, columns.shape[1] :]
    return rest


def _heads(form: Embedded, frame: Tensor, stretch: Tensor) -> list[Head]:
    found = []
    wide = form.width // form.heads
    assert form.query.gradient is not None and form.key.gradient is not None
    for start in range(0, form.width, wide):
        rows = slice(start, start + wide)
        ask, answer, bias = form.query.weight[rows], form.key.weight[rows], form.query.bias[rows]
        shared = ask @ form.fixed.T
        if float(bias.abs().max()) > 0:
            shared = torch.cat([shared, bias[:, None]], 1)
        left, right = across(answer @ form.fixed.T).T, across(shared).T
        query = left @ form.query.gradient[rows] @ frame / stretch
        key = right @ form.key.gradient[rows] @ frame / stretch
        by_query, by_key = left @ answer @ frame * stretch, right @ ask @ frame * stretch
        length = (query.norm() * by_key.norm()).clamp_min(1e-300)
        found.append(Head(by_query, query / length, by_key, key / length))
    return found


def _commuting(heads: list[Head], size: int, images: int, rng: Rng) -> tuple[Tensor, Tensor]:
    """The matrices that break the heads' equations least (k x size x size), and by how much, least first."""
    factor = _factored(_normal(heads, size))
    vectors = rng.normal((size * size, images + MORE), factor)
    for _ in range(5):
        vectors, _ = torch.linalg.qr(torch.cholesky_solve(vectors, factor))
    # The products lose half the digits: how small the least ones are is seen on the equations themselves.
    matrices = vectors.T.reshape(-1, size, size)
    left = torch.stack([torch.cat([head.broken(each).flatten() for head in heads]) for each in matrices], 1)
    _, sizes, mixtures = torch.linalg.svd(left, full_matrices=False)
    return (vectors @ mixtures.T).flip(1).T.reshape(-1, size, size), sizes.flip(0)


def _normal(heads: list[Head], size: int) -> Tensor:
    """The squares of the equations, as a matrix in the entries of A."""
    def total(one: str, other: str) -> Tensor:
        return torch.stack([getattr(head, one).T @ getattr(head, other) for head in heads])

    key, by_query, query, by_key = (total(name, name) for name in ("key", "by_query", "query", "by_key"))
    cross, back = total("by_query", "query"), total("key", "by_key")
    normal = torch.empty(size, size, size, size, dtype=torch.float64)
    for u in range(size):
        normal[u] = torch.einsum("hp,hvq->vpq", key[:, u], by_query)
        normal[u] += torch.einsum("hp,hvq->vpq", query[:, u], by_key)
        normal[u] -= torch.einsum("hvp,hq->vpq", cross, back[:, u])
        normal[u] -= torch.einsum("hq,hpv->vpq", cross[:, :, u], back)
    return normal.reshape(size * size, size * size)


def _factored(normal: Tensor) -> Tensor:
    """Cholesky's factor; what is singular is lifted as little as will do."""
    lift = 1e-15 * float(normal.diagonal().mean())
    for _ in range(6):
        normal.diagonal().add_(lift)
        found, problem = torch.linalg.cholesky_ex(normal)
        if not int(problem):
            factor: Tensor = found
            return factor
        lift *= 10
    raise Unsuited("patches cannot tell these images apart: the heads' equations are too nearly alike")


def _groups(space: Tensor, images: int, rng: Rng) -> tuple[list[Tensor], float]:
    """The tokens' coordinates image by image: eigenvectors of the mixture whose numbers fall apart most clearly."""
    best: tuple[float, Tensor, Tensor] | None = None
    for draw in range(DRAWS):
        mixture = torch.einsum("k,kuv->vu", (rng / draw).normal((images,), space), space[:images])
        numbers, vectors = torch.linalg.eig(mixture)
        order = numbers.real.argsort()
        rows = numbers.real[order].reshape(images, -1)
        gap = float((rows[1:, 0] - rows[:-1, -1]).min() / (rows[:, -1] - rows[:, 0]).max().clamp_min(1e-300))
        if best is None or gap > best[0]:
            best = gap, vectors, order.reshape(images, -1)
    assert best is not None
    gap, vectors, orders = best
    groups = []
    for order in orders:
        pairs = torch.cat([vectors[:, order].real, vectors[:, order].imag], 1)
        groups.append(torch.linalg.svd(pairs, full_matrices=False).U[:, : orders.shape[1]])
    return groups, gap
