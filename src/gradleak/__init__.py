"""gradleak: how much of my training data can be read back out of the update I send?"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Attack": "types", "Batch": "types", "Client": "types", "Defense": "types", "Guess": "types", "Know": "types",
    "Metric": "types", "Observation": "types", "Release": "types", "Update": "types",
    "GradleakError": "errors", "Unsuited": "errors", "UsageError": "errors",
    "Rng": "rng", "Threat": "threats", "threat": "threats", "residual": "residual",
    "build": "registry", "register": "registry", "parse": "spec",
    "Descent": "attacks.descent", "Restart": "attacks.combine", "Stages": "attacks.combine",
    "Audit": "audit.plan", "Verdict": "audit.verdict", "run": "audit.drive", "rows": "report.rows",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """Public names are found when first used: importing the package alone stays fast."""
    if name not in _PLACES:
        raise AttributeError(f"gradleak has no public name {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(f"gradleak.{_PLACES[name]}"), name)
