"""No defense: the baseline every other is measured against."""

from dataclasses import dataclass

from gradleak.registry import register
from gradleak.types import Client, Update


@register("defense", "none")
@dataclass(frozen=True)
class Nothing:
    """The update as computed."""

    meaning = "the update is sent as computed"
    random = False

    def protect(self, client: Client) -> Client:
        return client

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        return client
