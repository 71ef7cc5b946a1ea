"""How engines say how far they are."""

from collections.abc import Callable

Tell = Callable[[int, float], None]
"""Job number, and the share of it that is done."""
