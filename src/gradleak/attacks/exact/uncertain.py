"""One image's patches from gradients that noise, pruning or signs have blurred: the likeliest smooth picture.

As without a defense, the position embeddings' gradient D holds how the loss changes with each token, and the patch
projection's is D^T X for patches X. Both are now known only within limits. X is what explains them and also looks as
pictures usually do: one large linear system, each equation weighed by how blurred its two sides are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.embedded import Embedded
from gradleak.attacks.exact.span import least_squares
from gradleak.attacks.parts.spectrum import Spectrum

CONTRAST = 0.25
"""Standard deviation of a picture's pixels around grey."""

CAUTIONS = (1.0, 3.0, 10.0)
"""Factors on how far gradients may be from what was sent: what is pruned away, or explained by what is noisy itself, is
not independent from entry to entry."""

ROUNDS = 3
"""How often equations are weighed anew by the picture they gave."""

LEAST = 1e-3
"""No gradient entry is taken for more exact than this share of its layer's rms."""


@dataclass(frozen=True)
class Blurred:
    """What was sent of a gradient, and how far from it the gradient may be, entry by entry."""

    value: Tensor
    spread: Tensor


def signs(gradient: Tensor) -> bool:
    """Whether only the sign of each entry was sent."""
    sizes = gradient[gradient != 0].abs()
    return not len(sizes) or float(sizes.max() - sizes.min()) < 1e-6 * float(sizes.max())


def blurred(gradient: Tensor, noise: float, rms: float = 1.0) -> Blurred:
    """Read off the entries what was done to them: only some sent, or all with noise of a standard deviation; or only
    signs, of numbers of some rms."""
    there = gradient != 0
    if signs(gradient):
        typical = math.sqrt(2 / math.pi)  # of a normal number's size, beside its rms
        return Blurred(gradient.sign() * typical * rms, torch.full_like(gradient, math.sqrt(1 - typical**2) * rms))
    sizes = gradient[there].abs()
    kept = float(sizes.square().mean().sqrt())
    exact = torch.full_like(gradient, max(noise, LEAST * float(gradient.square().mean().sqrt())))
    if float(there.double().mean()) > 0.99:
        return Blurred(gradient, exact)
    limit = float(sizes.min())  # near zero only if entries were dropped whatever their size
    missing = limit / math.sqrt(3) if limit > 0.01 * kept else kept
    return Blurred(gradient, torch.where(there, exact, torch.full_like(exact, missing)))


def explanations(form: Embedded) -> Iterator[Tensor]:
    """Patches under each reading of what was done to the gradients that cannot be told from them alone; the replay
    has to choose."""
    places, patches = form.place_gradient, form.patch_gradient
    if places is None or patches is None or form.places >= form.width:
        return
    if signs(patches):
        usual = math.sqrt(form.places) * float(form.scale.abs().mean())
        for scale in (0.1, 0.2, 0.4, 0.8):
            known = blurred(places, 0.0)
            yield likeliest(form, known, blurred(patches, 0.0, scale * usual), _summed(known))
        return
    for of_places, of_patches, of_sum in _levels(form, places, patches):
        known = blurred(places, of_places)
        total = _summed(known) if form.sum_gradient is None else blurred(form.sum_gradient, of_sum)
        for caution in CAUTIONS:
            yield likeliest(form, known, blurred(patches, of_patches), total, caution)


def _levels(form: Embedded, places: Tensor, patches: Tensor) -> list[tuple[float, float, float]]:
    """Standard deviations of noise in the gradients of places, patches and their sum: alike in proportion to each
    layer's rms, or alike. How far the sum is from the sum of the places tells how much there is."""
    rms = float(patches.square().mean().sqrt())
    if bool((patches == 0).double().mean() > 0.01):
        return [(0.0, 0.0, 0.0)]
    if form.sum_gradient is None:
        found = least_squares(places.T, patches)
        share = float((places.T @ found - patches).norm() / patches.norm())
        return [(share * form.place_rms, share * rms, 0.0)]
    whole = float(form.sum_gradient.square().mean().sqrt())
    apart = float((form.sum_gradient - places.sum(0)).square().mean().sqrt())
    share, alike = apart / math.sqrt(whole**2 + len(places) * form.place_rms**2), apart / math.sqrt(len(places) + 1)
    return [(share * form.place_rms, share * rms, share * whole), (alike, alike, alike)]


def _summed(places: Blurred) -> Blurred:
    return Blurred(places.value.sum(0), places.spread.square().sum(0).sqrt())


class Pictures:
    """Smooth pictures as white numbers: frequencies fall like those of photographs, colours vary less than light."""

    def __init__(self, form: Embedded) -> None:
        self.form = form
        self.spectrum = Spectrum.of(tuple(form.scale.shape), form.scale, CONTRAST)

    def patches(self, white: Tensor) -> Tensor:
        """How the patches differ from those of a grey picture."""
        return self._cut(self.spectrum.picture(white) * self.form.scale)

    def back(self, patches: Tensor) -> Tensor:
        """The transpose of `patches`."""
        size, side = tuple(self.form.scale.shape[1:]), self.form.side
        return self.spectrum.back(F.fold(patches.T[None], size, side, stride=side)[0] * self.form.scale)

    @property
    def usual(self) -> Tensor:
        """As far as patches usually are from grey."""
        return self._cut(CONTRAST * self.form.scale)

    @property
    def grey(self) -> Tensor:
        return self._cut(0.5 * self.form.scale + self.form.level)

    def _cut(self, picture: Tensor) -> Tensor:
        return F.unfold(picture[None], self.form.side, stride=self.form.side)[0].T


def likeliest(form: Embedded, places: Blurred, patches: Blurred, total: Blurred, caution: float = 1.0) -> Tensor:
    """Patches (places x numbers).

    What a grey picture would give is taken off with the projection's bias, whose gradient is the sum of the tokens':
    that one is far more exact than the sum of what was sent of each.
    """
    pictures = Pictures(form)
    grey, white = pictures.grey, torch.zeros_like(form.scale)
    mean = grey.mean(0)
    sent = patches.value - total.value[:, None] * mean
    sharp = patches.spread.square() + (total.spread[:, None] * mean).square()
    rows, doubt = _around(places, total)
    found = pictures.usual
    for _ in range(ROUNDS):
        # An entry is as doubtful as what was sent of it, and as the token gradients it is explained by.
        weights = (caution**2 * (sharp + doubt @ found.square())).reciprocal()
        known = torch.einsum("ij,ip,iq->jpq", weights, rows, rows)
        white = _smoothed(pictures, known, rows.T @ (weights * sent), white)
        found = pictures.patches(white)
    return grey + found


def _around(places: Blurred, total: Blurred) -> tuple[Tensor, Tensor]:
    """The tokens' gradients (width x places) and their variances: what was sent, drawn towards zero as far as it is
    blurred, then moved so that each sum agrees with the one that was sent too."""
    variance = places.spread.T.square()
    signal = (places.value.square().mean() - variance.mean()).clamp_min(1e-3 * variance.mean())
    rows, doubt = places.value.T * signal / (signal + variance), signal * variance / (signal + variance)
    share = doubt / (doubt.sum(1, keepdim=True) + total.spread.square()[:, None])
    return rows + share * (total.value - rows.sum(1))[:, None], doubt * (1 - share)


def _smoothed(pictures: Pictures, known: Tensor, wanted: Tensor, start: Tensor, steps: int = 120) -> Tensor:
    """Conjugate gradients on the unknown picture."""
    def applied(white: Tensor) -> Tensor:
        return white + pictures.back(torch.einsum("jpq,qj->pj", known, pictures.patches(white)))

    white = start
    left = pictures.back(wanted) - applied(white)
    ahead, size = left, left.square().sum()
    first = size
    for _ in range(steps):
        if float(size) <= 1e-12 * float(first):
            break
        turned = applied(ahead)
        pace = size / (ahead * turned).sum()
        white, left = white + pace * ahead, left - pace * turned
        size, before = left.square().sum(), size
        ahead = left + size / before * ahead
    return white
