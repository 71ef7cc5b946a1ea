"""Improved Deep Leakage from Gradients (Zhao, Mopuri and Bilen, 2020)."""

from gradleak.attacks.recipes.dlg import dlg
from gradleak.registry import register
from gradleak.types import Attack


@register("attack", "idlg")
def idlg(steps: int = 1000, restarts: int = 2, tv: float = 3.0, published: bool = False) -> Attack:
    """DLG with one field changed: the labels are read off the last layer first.

    Differs from the paper: as `dlg` does, and batches are served too, by counting how often each class occurs.
    """
    return dlg(steps, restarts, tv, "counted", published).images
