"""Updates from real systems: recorded where they leave the client, read back as an attacker's view."""

from importlib import import_module
from typing import Any

_PLACES = {
    "update": "watch", "Watch": "watch", "read": "format", "find": "format", "write": "format", "Note": "format",
    "attack": "recover", "trainer_callback": "huggingface", "recording": "flower", "record_mod": "flower",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Found when first used: Flower and transformers are only needed by those who use them."""
    if name not in _PLACES:
        raise AttributeError(f"gradleak.capture has no public name {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(f"gradleak.capture.{_PLACES[name]}"), name)
