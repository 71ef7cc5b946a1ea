"""Attacks made of attacks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gradleak.attacks.descent import Descent
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.types import Attack, Batch, Guess, Know, Observation

PARTS = 1000
"""Each attack of several counts as so many steps, whatever its own count."""


@dataclass(frozen=True)
class Restart:
    """The same attack from several random starts, the lowest residual kept.

    A descent runs its starts side by side; any other attack runs them in turn.
    """

    attack: Attack
    times: int

    @property
    def needs(self) -> frozenset[Know]:
        return self.attack.needs

    @property
    def evaluations(self) -> int:
        return self.attack.evaluations * self.times

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        if isinstance(self.attack, Descent):
            yield from replace(self.attack, lanes=self.times).guesses(seen, rng, start)
            return
        yield from _in_turn([self.attack] * self.times, seen, rng, start, hand_over=False)


@dataclass(frozen=True)
class Stages:
    """One attack after another, each starting from the last one's answer; the lowest residual is kept."""

    attacks: tuple[Attack, ...]

    @property
    def needs(self) -> frozenset[Know]:
        return frozenset().union(*(attack.needs for attack in self.attacks))

    @property
    def evaluations(self) -> int:
        return sum(attack.evaluations for attack in self.attacks)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        yield from _in_turn(list(self.attacks), seen, rng, start, hand_over=True)


def _in_turn(
    attacks: list[Attack], seen: Observation, rng: Rng, start: Guess | None, hand_over: bool,
) -> Iterator[Guess]:
    """Run attacks one after the other. The state carries which one is under way and the best answer before it."""
    state = dict(start.state) if start else {}
    first = int(state.pop("stage", torch.tensor(0)))
    best = _unpacked(state, "kept.") if start else None
    inner = replace(start, state=state) if start and state else start
    for stage in range(first, len(attacks)):
        last: Guess | None = None
        for last in attacks[stage].guesses(seen, rng / stage, inner):
            kept = {f"kept.{k}": v for k, v in _packed(best).items()} if best else {}
            shown = _lower(seen, best, last)
            state = {"stage": torch.tensor(stage), **kept, **last.state}
            done = PARTS * stage + PARTS * last.step // last.steps
            yield replace(shown, step=done, steps=PARTS * len(attacks), state=state)
        if last is not None:
            best = _lower(seen, best, replace(last, state={}))
        inner = best if hand_over else None


def _lower(seen: Observation, one: Guess | None, other: Guess) -> Guess:
    if one is None or residual(seen, other.batch).cosine <= residual(seen, one.batch).cosine:
        return other
    return one


def _packed(guess: Guess) -> dict[str, torch.Tensor]:
    return {"x": guess.batch.x, "y": guess.batch.y, "reading": guess.reading}


def _unpacked(state: dict[str, torch.Tensor], prefix: str) -> Guess | None:
    """Take a packed guess out of a state, if one is there."""
    kept = {k.removeprefix(prefix): state.pop(k) for k in list(state) if k.startswith(prefix)}
    return Guess(Batch(kept["x"], kept["y"]), kept["reading"]) if kept else None
