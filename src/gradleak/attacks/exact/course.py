"""How far a search is that takes minutes: enough to stop it after any turn, and to go on from there exactly."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gradleak.attacks.exact.judge import Company
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.settling import Settling, Turn
from gradleak.rng import Rng
from gradleak.types import NOTHING

KEPT = ("at", "score", "sentences", "resting")
"""What is kept of a turn, beside the labels where there are any."""


class Course:
    """The settlings of one search, in their order; those of an earlier sitting, as its `state` tells, go on where they
    stood. What leads to a settling is worked out anew, to the same end."""

    def __init__(self, state: Mapping[str, Tensor] | None = None) -> None:
        self._past, self._turns = _unpacked(state or {}), dict[str, Turn]()

    def ahead(self, name: str) -> bool:
        """Whether this settling was begun in an earlier sitting."""
        return name in self._past

    @property
    def taken(self) -> int:
        """Turns of all settlings so far."""
        return sum(turn.number for turn in self._turns.values())

    @property
    def state(self) -> dict[str, Tensor]:
        return _packed(self._turns)

    def through(self, name: str, settling: Settling, rng: Rng, wide: bool = True) -> Iterator[None]:
        """A settling, turn by turn, under a name of its own."""
        past = self._past.get(name)
        if past is not None:
            self._turns[name] = past
        for turn in settling.turns(rng, wide, past):
            self._turns[name] = turn
            yield


def _packed(turns: Mapping[str, Turn]) -> dict[str, Tensor]:
    found = dict[str, Tensor]()
    for name, turn in turns.items():
        found[f"settling.{name}.at"] = torch.tensor([turn.number, turn.idle])
        found[f"settling.{name}.score"] = torch.tensor(turn.score, dtype=torch.float64)
        found[f"settling.{name}.sentences"] = _rows(turn.company.sentences)
        found[f"settling.{name}.resting"] = _rows(sorted(turn.resting))
        if turn.company.labels is not None:
            found[f"settling.{name}.labels"] = torch.tensor(turn.company.labels)
    return found


def _unpacked(state: Mapping[str, Tensor]) -> dict[str, Turn]:
    found = dict[str, Turn]()
    for key in state:
        if key.startswith("settling.") and key.endswith(".at"):
            name = key.removeprefix("settling.").removesuffix(".at")
            at, score, rows, resting = (state[f"settling.{name}.{part}"] for part in KEPT)
            labels = state.get(f"settling.{name}.labels")
            company = Company(_sentences(rows), None if labels is None else tuple(labels.tolist()))
            number, idle = at.tolist()
            found[name] = Turn(company, float(score), number, idle, frozenset(_sentences(resting)))
    return found


def _rows(sentences: "tuple[Sentence, ...] | list[Sentence]") -> Tensor:
    longest = max(map(len, sentences), default=0)
    rows = [[*sentence, *[NOTHING] * (longest - len(sentence))] for sentence in sentences]
    return torch.tensor(rows, dtype=torch.long).reshape(len(sentences), longest)


def _sentences(rows: Tensor) -> tuple[Sentence, ...]:
    return tuple(tuple(token for token in row if token != NOTHING) for row in rows.tolist())
