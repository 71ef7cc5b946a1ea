"""The client's side: data, models, and what a participant does in a round."""

from gradleak.world import efficientnet, image, text

__all__ = ["efficientnet", "image", "text"]
