"""Send the largest entries, keep the rest for the next round."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradleak.defenses.prune import Prune
from gradleak.registry import register
from gradleak.types import Client, Update


@register("defense", "topk")
@dataclass(frozen=True)
class TopK:
    """Send the share `keep` of the largest entries; what is not sent is added to the next update (error feedback).

    Of a single update it is prune(keep=). Over rounds nothing is lost, which trains better and tells more.
    """

    keep: float

    random = False

    def __post_init__(self) -> None:
        self._once  # noqa: B018  refuses a share that is none

    @property
    def _once(self) -> Prune:
        return Prune(self.keep)

    @property
    def meaning(self) -> str:
        return f"{self._once.meaning}, the rest is kept for the next round"

    def protect(self, client: Client) -> Client:
        return self._once.protect(client)

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        return self._once.mimic(client, update)

    def carry(self, update: Update, memory: Update) -> tuple[Update, Update]:
        whole = {name: value + memory.get(name, torch.zeros_like(value)) for name, value in update.items()}
        sent = self._once.pruned(whole)
        return sent, {name: value - sent[name] for name, value in whole.items()}

    def replayed(self, computed: Sequence[Update], seen: Sequence[Update]) -> list[Update]:
        """Which entries were sent is plain to see, so that what was left can be followed exactly."""
        found: list[Update] = []
        memory: dict[str, torch.Tensor] = {}
        for update, sent in zip(computed, seen, strict=True):
            whole = {name: value + memory[name] if memory else value for name, value in update.items()}
            found.append({name: value * (sent[name] != 0) for name, value in whole.items()})
            memory = {name: value * (sent[name] == 0) for name, value in whole.items()}
        return found
