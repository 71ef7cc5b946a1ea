"""Secure aggregation: the server learns only what many clients sent together."""

from dataclasses import dataclass

from gradleak.calculus import averaged
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.types import Client, Update


@register("defense", "aggregate")
@dataclass(frozen=True)
class Aggregate:
    """The mean of the updates of `clients` clients, each with a batch of its own; no single one is ever seen.

    The audited batch is that of one client: as many times more examples are behind the update, and all are looked for.
    """

    clients: int

    random = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise UsageError(f"aggregate(clients={self.clients}): at least 1")

    @property
    def meaning(self) -> str:
        return f"only the mean of {self.clients} clients' updates is seen"

    def protect(self, client: Client) -> Client:
        return lambda params, batch, rng: averaged(client, params, batch, rng, self.clients)

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        """Candidates are dealt out to the clients in their order."""
        return self.protect(client)
