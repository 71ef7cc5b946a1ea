"""How much of the truth a reading holds: one number per sample, one assignment for all metrics."""

from gradleak.metrics import image, labels, lpips, text

__all__ = ["image", "labels", "lpips", "text"]
