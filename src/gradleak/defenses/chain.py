"""Several defenses, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gradleak.defenses.accounting import Privacy
from gradleak.defenses.dpsgd import DpSgd
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.types import Client, Defense, Update


@dataclass(frozen=True)
class Chain:
    """Applied left to right; undone right to left; each mimic reads the update as it was when that part acted."""

    parts: tuple[Defense, ...]

    @property
    def random(self) -> bool:
        return any(part.random for part in self.parts)

    @property
    def meaning(self) -> str:
        return "; then ".join(str(getattr(part, "meaning", part)) for part in self.parts)

    @property
    def per_example(self) -> bool:
        return any(getattr(part, "per_example", False) for part in self.parts)

    @property
    def clients(self) -> int:
        """How many send together."""
        return prod(getattr(part, "clients", 1) for part in self.parts)

    @property
    def privacy(self) -> Privacy | None:
        """Of the one part that gives any: what comes after it works on what is private already, what comes before
        changes no example's bound."""
        return next((part.privacy for part in self.parts if isinstance(part, DpSgd | Chain) and part.privacy), None)

    def protect(self, client: Client) -> Client:
        for part in self.parts:
            client = part.protect(client)
        return client

    def _undone(self, update: Update) -> Iterator[tuple[Defense, Update]]:
        """Each part, last first, with the update as it left that part."""
        for part in reversed(self.parts):
            yield part, update
            update = part.clean(update)

    def clean(self, update: Update) -> Update:
        for part in reversed(self.parts):
            update = part.clean(update)
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        for part, left in reversed(list(self._undone(update))):
            client = part.mimic(client, left)
        return client

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.parts))})"


@register("defense", "chain")
def chain(*parts: Defense) -> Chain:
    """Chain at least one defense."""
    if not parts:
        raise UsageError("chain(): name at least one defense, as in chain(clip(norm=1.0), noise(sigma=0.001))")
    return Chain(parts)
