"""The images of a vision transformer's batch, in closed form."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.embedded import Embedded, embedded
from gradleak.attacks.exact.separation import across, separated
from gradleak.attacks.exact.span import least_squares, together, triangle
from gradleak.attacks.exact.uncertain import explanations
from gradleak.attacks.exact.watched import Call, watched
from gradleak.attacks.parts.labels import count, head
from gradleak.calculus import one_thread
from gradleak.errors import Unsuited
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation

ROUNDED = 1e-5
"""Share of the patch projection's gradient left over, up to which only rounding is."""

SOLVED = 0.05
"""Share of the span's equations left over, up to which they were solved and not only fitted."""

TRUSTED = 5.0
"""Both gaps of a separation must reach this."""


@dataclass(frozen=True)
class Solution:
    """Patches (places x numbers), the share of the right side of their equations that they do not explain, and
    whether that is little enough to be sure of them."""

    patches: Tensor
    misfit: float
    certain: bool


@dataclass(frozen=True)
class Span:
    """Directions of the width (rows) with how much of each the attention layers' gradients hold, largest first."""

    sizes: Tensor
    directions: Tensor

    def outside(self, tokens: int) -> Tensor:
        """Directions no token has, each weighed by how sure that is: one just above rounding is neither in nor out."""
        rounding = self.sizes[tokens]
        weights = 1 / (1 + (self.sizes / rounding.clamp_min(1e-300)).square())
        sure = weights > 1e-12
        return weights[sure, None] * self.directions[sure]


def attention_span(form: Embedded) -> Span:
    """The space of what attention was given, from the query, key and value gradients, each of length one."""
    sent = [part.gradient for part in (form.query, form.key, form.value) if part.gradient is not None]
    if not sent:
        raise Unsuited("patches needs the gradient of the first query, key or value layer; all are frozen")
    _, sizes, directions = torch.linalg.svd(triangle(together(sent)), full_matrices=True)
    return Span(torch.nn.functional.pad(sizes, (0, len(directions) - len(sizes))), directions)


def basis(form: Embedded, images: int) -> Tensor | None:
    """A basis of all patches where there are fewer of them than numbers in one and the projection is trained: its
    gradient's rows are mixtures of patches."""
    if form.patch_gradient is None or images * form.places >= form.patch:
        return None
    _, _, rows = torch.linalg.svd(form.patch_gradient, full_matrices=False)
    mixed: Tensor = rows[: images * form.places].T
    return mixed


def equations(form: Embedded, images: int) -> Tensor | None:
    """Count before solving: the basis to solve in, if one is needed, or the reason why there are too few equations."""
    tokens = form.places + len(form.fixed)
    there = form.width - tokens
    shifted = int(bool(form.shift.abs().max() > 0))
    needed = form.patch + (shifted or 1)
    if len(form.fixed) + images * form.places >= form.width:
        raise Unsuited(f"patches needs fewer tokens than the model is wide: {len(form.fixed) + images * form.places} "
                       f"tokens, width {form.width}")
    if there >= needed:
        return None
    smaller = basis(form, images)
    if smaller is not None and there >= smaller.shape[1] + 1:
        return smaller
    how = "the patch projection is frozen" if form.patch_gradient is None else "the patches span all of a patch"
    raise Unsuited(f"patches has {there} equations a patch (width {form.width}, {tokens} tokens) for {needed} "
                   f"unknowns, and {how}")


def solved(form: Embedded, outside: Tensor, within: Tensor | None) -> Solution:
    """Patches whose tokens have none of the directions `outside`.

    A token is (centred projection) / spread + shift, so that what is outside is linear in the patch and its spread.
    """
    weight = form.weight if within is None else form.weight @ within
    system = outside @ form.centred(weight.T).T
    if float(form.shift.abs().max()) > 0:
        system = torch.cat([system, (outside @ form.shift)[:, None]], 1)
    scale = system.norm(dim=0).clamp_min(1e-300)
    wanted = -(outside @ form.centred(form.offset).T)
    found = least_squares(system / scale, wanted) / scale[:, None]
    patches = found[: weight.shape[1]].T
    misfit = _share(system @ found - wanted, wanted)
    return Solution(patches if within is None else patches @ within.T, misfit, misfit < SOLVED)


def _share(left: Tensor, whole: Tensor) -> float:
    return float(left.norm() / whole.norm().clamp_min(1e-300))


def by_place(form: Embedded) -> Solution:
    """One image's patches where position embeddings and patch projection are trained: the former's gradient says how
    the loss changes with each token, and the latter's is the sum of these times the patches."""
    if form.place_gradient is None or form.patch_gradient is None:
        raise Unsuited("patches needs trained position embeddings and a trained patch projection for this")
    if form.places >= form.width:
        raise Unsuited(f"patches has {form.width} equations for {form.places} unknowns")
    found = least_squares(form.place_gradient.T, form.patch_gradient)
    misfit = _share(form.place_gradient.T @ found - form.patch_gradient, form.patch_gradient)
    return Solution(found, misfit, misfit < ROUNDED)


@dataclass(frozen=True)
class Patches:
    """Every linear layer's gradient is made of its inputs. The first attention layers of a vision transformer are given
    one vector a patch, a known function of it: which patch it was is a small linear system a place."""

    needs = frozenset({Know.COUNT})
    evaluations = 12

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        with one_thread():
            form, images = embedded(seen, rng), count(seen)
            yield _alone(seen, form) if images == 1 else _several(seen, form, images, rng)


def _alone(seen: Observation, form: Embedded) -> Guess:
    """One image: by place where that can be, else by the span; where neither is sure, that way, or that smooth
    picture, which explains the update best."""
    found: list[Guess] = []
    problem: Unsuited | None = None
    for way in (by_place, by_span):
        try:
            solution = way(form)
        except Unsuited as reason:
            problem = reason
            continue
        notes = {"misfit": solution.misfit, "certain": float(solution.certain)}
        images = form.image(solution.patches[None])
        if solution.certain:
            return told(seen, images, notes)
        found.append(told(seen, images.clamp(0, 1), notes))
    for patches in explanations(form):
        found.append(told(seen, form.image(patches[None]).clamp(0, 1), {"certain": 0.0}))
    if not found:
        assert problem is not None
        raise problem
    return min(found, key=lambda guess: residual(seen, guess.batch).cosine)


def by_span(form: Embedded) -> Solution:
    """One image's patches from the attention layers alone."""
    within = equations(form, 1)
    return solved(form, attention_span(form).outside(form.places + len(form.fixed)), within)


def _several(seen: Observation, form: Embedded, images: int, rng: Rng) -> Guess:
    """Several images: told apart first, then each like one alone; without its certificate, marked as uncertain."""
    within = equations(form, images)
    found = attention_span(form)
    tokens = len(form.fixed) + images * form.places
    apart = separated(form, found.directions[:tokens], images, rng / "apart")
    solutions = [solved(form, across(tokens).T, within) for tokens in apart.bases]
    certain = min(apart.space_gap, apart.group_gap) >= TRUSTED and all(solution.certain for solution in solutions)
    notes = {"certain": float(certain), "space_gap": apart.space_gap, "group_gap": apart.group_gap,
             "span_gap": float(found.sizes[tokens - 1] / found.sizes[tokens].clamp_min(1e-300)),
             "misfit": max(solution.misfit for solution in solutions)}
    return told(seen, form.image(torch.stack([solution.patches for solution in solutions])), notes)


def told(seen: Observation, images: Tensor, notes: dict[str, float]) -> Guess:
    """A guess of these images, with the label that the last layer's gradient gives each."""
    pixels = images.to(next(iter(seen.params.values()))).detach()
    labels, sure = _labels(seen, pixels)
    return Guess(Batch(pixels, labels), pixels.clamp(0, 1), step=1, notes={"label_confidence": sure, **notes})


def _labels(seen: Observation, x: Tensor) -> tuple[Tensor, float]:
    """The last layer's gradient is sum_i (p_i - y_i) h_i^T: with features h known, p - y is, and only a label's entry
    is negative."""
    weight, bias = head(seen)
    last = seen.params[weight]
    features = []
    for image in x:
        calls = watched(seen, image[None], lambda call: call.weight is last)
        features.append(_features(calls[-1], last))
    known = torch.stack(features).double()
    sent = seen.update[weight].double()
    if bias is not None:
        known = torch.cat([known, torch.ones_like(known[:, :1])], 1)
        sent = torch.cat([sent, seen.update[bias].double()[:, None]], 1)
    change = least_squares(known.T, sent.T)
    negative = -change.clamp_max(0)
    sure = negative.amax(1) / negative.sum(1).clamp_min(1e-300)
    return change.argmin(1), float(sure.mean())


def _features(call: Call, last: Tensor) -> Tensor:
    if call.weight is not last or call.inputs[0].ndim != 2:
        raise Unsuited("patches reads labels off a last linear layer; this model has none")
    return call.inputs[0][0]
