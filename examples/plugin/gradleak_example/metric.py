"""A metric: how wrong the worst pixel is."""

from torch import Tensor

from gradleak.metrics.image import ImageMetric


def _largest_error(reading: Tensor, truth: Tensor) -> float:
    return float((reading - truth).abs().max())


def worst_pixel() -> ImageMetric:
    """Largest error of any pixel; reported, never judged."""
    return ImageMetric("worst_pixel", "lower", None, _largest_error)
