"""Images in [0, 1]."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradleak.errors import Unscored
from gradleak.registry import register


@dataclass(frozen=True)
class ImageMetric:
    """A pure function of one image and its truth, applied sample by sample."""

    name: str
    better: Literal["higher", "lower"]
    leak_at: float | None
    function: Callable[[Tensor, Tensor], float]
    margin: float = 0.0
    """How much better than the best flat picture a reading must be to count as read."""

    def __call__(self, readings: Tensor, truths: Tensor) -> list[float]:
        if not all(isinstance(found, Tensor) for found in (*readings, *truths)):
            raise Unscored(f"{self.name} compares images, and these are not; for text there are exact_match, rougeL")
        return [self.function(reading, truth) for reading, truth in zip(readings, truths, strict=True)]


def mean_squared_error(reading: Tensor, truth: Tensor) -> float:
    return float((reading.double() - truth.double()).square().mean())


def peak_signal_to_noise(reading: Tensor, truth: Tensor) -> float:
    """In decibels, for values in [0, 1]; capped at 120."""
    from math import log10

    return -10 * log10(max(mean_squared_error(reading, truth), 1e-12))


def structural_similarity(reading: Tensor, truth: Tensor) -> float:
    """Gaussian window of 11 pixels (smaller for smaller images), as in the original definition."""
    from skimage.metrics import structural_similarity as ssim

    one, other = (t.double().cpu().numpy() for t in (reading, truth))
    side = min(one.shape[-2:])
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False} if side >= 11 else {
        "win_size": side - (side + 1) % 2}
    value: float = ssim(one, other, channel_axis=0, data_range=1.0, **window)  # type: ignore[no-untyped-call]
    return float(value)


def blind(truths: Tensor) -> Tensor:
    """The best flat picture of each truth: what no attacker needs an update for."""
    return truths.mean((-2, -1), keepdim=True).expand_as(truths)


@register("metric", "mse")
def mse(leak_at: float | None = None) -> ImageMetric:
    """Mean squared error."""
    return ImageMetric("mse", "lower", leak_at, mean_squared_error)


@register("metric", "psnr")
def psnr(leak_at: float = 20.0) -> ImageMetric:
    """Peak signal-to-noise ratio: below 13 dB a blur at best, from 20 dB recognisable, from 30 dB faithful."""
    return ImageMetric("psnr", "higher", leak_at, peak_signal_to_noise, margin=3.0)


@register("metric", "ssim")
def ssim(leak_at: float | None = 0.8) -> ImageMetric:
    """Structural similarity, 1 for identical pictures."""
    return ImageMetric("ssim", "higher", leak_at, structural_similarity, margin=0.2)
