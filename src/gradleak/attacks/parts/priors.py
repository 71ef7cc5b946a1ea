"""What data look like before any update is seen. Each maps candidates (R x B x ...) to R numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.parts.spaces import PixelRoom, Room
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.norms import Met, Moments, Statistics, moments

Prior = Callable[[Tensor, Room], Tensor]

FLAT = 1e-3
"""Pictures vary more than this from pixel to pixel: none is drawn towards grey because grey would be so likely."""


def total_variation(x: Tensor, room: Room | None = None) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
    return down + across


def outlines(x: Tensor, room: Room) -> Tensor:
    """How unlikely the differences of neighbouring pixels are, of whatever contrast: the logarithm of the total
    variation for every pixel, shared out among the numbers of the update, as the logarithm of a likelihood is. It
    counts half as much as it would beside all of that."""
    assert isinstance(room, PixelRoom)
    return total_variation(x).clamp_min(FLAT).log() * (room.unknowns / room.told)


def word_length(x: Tensor, room: Room) -> Tensor:
    """How far the mean length of the embeddings is from that of the model's words, squared."""
    assert isinstance(room, TokenRoom)
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1)
    gap: Tensor = lengths.flatten(1).mean(1) - room.norm
    return gap.square()


def brightness(x: Tensor, room: Room) -> Tensor:
    """Mean square of the pixels, counted from grey."""
    return (x - 0.5).square().flatten(1).mean(1)


def consensus(x: Tensor, room: Room) -> Tensor:
    """Mean square of what parts each lane from all lanes' registered mean: moved onto their plain mean by the whole
    pixels at which the phases of both agree best, then averaged."""
    if len(x) == 1:
        return torch.zeros_like(x[:, 0]).flatten(1)[:, 0]
    still = x.detach()
    mean = torch.stack([registered(lane, still.mean(0)) for lane in still]).mean(0)
    return (x - mean).square().flatten(1).mean(1)


def registered(images: Tensor, onto: Tensor) -> Tensor:
    """Each image (B x C x H x W) rolled to where its phase correlation with its target is highest, by an eighth of its
    side at most."""
    cross = torch.fft.fft2(onto.mean(1)) * torch.fft.fft2(images.mean(1)).conj()
    peak = torch.fft.ifft2(cross / cross.abs().clamp_min(1e-12)).real
    high, wide = peak.shape[-2:]
    down, across = (torch.fft.fftfreq(side, 1 / side).round().long().to(peak.device) for side in (high, wide))
    near = (down.abs() <= high // 8)[:, None] & (across.abs() <= wide // 8)
    places = peak.masked_fill(~near, -torch.inf).flatten(1).argmax(1)
    return torch.stack([image.roll((int(down[place // wide]), int(across[place % wide])), (-2, -1))
                        for image, place in zip(images, places.tolist(), strict=True)])


@dataclass(frozen=True)
class Moment:
    """How far the batch's mean and variance at every BatchNorm are from those of the data the model was trained on.

    By default in units of the latter, averaged over layers; `published` sums the lengths of the differences, the first
    two layers weighed more. Layers without statistics, or with those of a model never trained, say nothing.
    """

    published: bool = False

    def compared(self, met: Sequence[Met], known: Statistics) -> list[tuple[Met, Moments]]:
        found = [(one, known.get(one.layer, one.by)) for one in met]
        return [(one, by) for one, by in found if by is not None and bool(by.mean.any())]

    def gap(self, met: Sequence[Met], known: Statistics, like: Tensor) -> Tensor:
        """Of one lane."""
        gaps = [self._of(number, moments(one.x), by) for number, (one, by) in enumerate(self.compared(met, known))]
        if not gaps:
            return torch.zeros((), dtype=like.dtype, device=like.device)
        return torch.stack(gaps).sum() if self.published else torch.stack(gaps).mean()

    def _of(self, number: int, here: Moments, by: Moments) -> Tensor:
        mean, variance = here.mean - by.mean, here.variance - by.variance
        if self.published:
            return (1.3, 3.0, 1.0)[min(number, 2)] * (_length(mean) + _length(variance))
        scale = by.variance.clamp_min(1e-5)
        return ((mean / scale.sqrt()).square().mean() + (variance / scale).square().mean() + 1e-12).sqrt()


def _length(vector: Tensor) -> Tensor:
    return (vector.square().sum() + 1e-12).sqrt()
