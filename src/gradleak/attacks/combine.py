"""Attacks made of attacks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from gradleak.attacks.descent import EXPLAINED, Descent
from gradleak.attacks.search import Beam
from gradleak.errors import UsageError
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

    def __post_init__(self) -> None:
        if self.times < 1:
            raise UsageError(f"restarts={self.times}: at least 1")

    @property
    def needs(self) -> frozenset[Know]:
        return self.attack.needs

    @property
    def uses(self) -> tuple[str, ...]:
        return getattr(self.attack, "uses", ())

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
    """One attack after another, each starting from the last one's answer; the lowest residual is kept. An answer that
    is noted as certain needs no further one."""

    attacks: tuple[Attack, ...]

    @property
    def needs(self) -> frozenset[Know]:
        return frozenset().union(*(attack.needs for attack in self.attacks))

    @property
    def evaluations(self) -> int:
        return sum(attack.evaluations for attack in self.attacks)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        yield from _in_turn(list(self.attacks), seen, rng, start, hand_over=True)


@dataclass(frozen=True)
class Alternate:
    """A descent and a beam in turn, each going on from the other's answer; over once a round ends with the words it
    began with, or they explain the update. The answer that matches best is kept from round to round."""

    descent: Descent
    beam: Beam
    rounds: int = 5
    again: int | None = None
    """Steps of the rounds after the first, if they are fewer."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"rounds={self.rounds}: at least 1")

    @property
    def needs(self) -> frozenset[Know]:
        return self.descent.needs

    @property
    def evaluations(self) -> int:
        return sum(self._round(number).evaluations for number in range(self.rounds))

    def _round(self, number: int) -> Descent:
        steps = self.descent.steps if not number or self.again is None else min(self.again, self.descent.steps)
        return replace(self.descent, steps=steps, beam=self.beam)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        first, begun, inner = self._restored(start)
        for number in range(first, self.rounds):
            for guess in self._round(number).guesses(seen, rng / number, inner):
                over = guess.step == guess.steps and (
                    number + 1 == self.rounds or float(guess.state["told.off"]) < EXPLAINED
                    or (begun is not None and torch.equal(guess.reading, begun)))
                done = PARTS * (number + 1) if guess.step == guess.steps else (
                    PARTS * number + (PARTS - 1) * guess.step // guess.steps)
                state = {"round": torch.tensor(number), **({} if begun is None else {"begun": begun}),
                         **{f"inner.{k}": v for k, v in guess.state.items()}}
                yield replace(guess, step=PARTS * self.rounds if over else done, steps=PARTS * self.rounds, state=state)
                if over:
                    return
            begun, inner = guess.reading, replace(guess, state={})

    def _restored(self, start: Guess | None) -> tuple[int, torch.Tensor | None, Guess | None]:
        """The round to go on with, the words it began with, and the guess it goes on from."""
        if start is None or "round" not in start.state:
            return 0, None, start
        number = int(start.state["round"])
        if start.step == PARTS * self.rounds:
            return self.rounds, None, None
        if start.step == PARTS * (number + 1):
            return number + 1, start.reading, replace(start, state={})
        inner = {k.removeprefix("inner."): v for k, v in start.state.items() if k.startswith("inner.")}
        return number, start.state.get("begun"), replace(start, state=inner)


@dataclass(frozen=True)
class ByKind:
    """One name for two attacks: what the data are decides which it is."""

    images: Attack
    words: Attack

    @property
    def needs(self) -> frozenset[Know]:
        return self.images.needs & self.words.needs

    @property
    def evaluations(self) -> int:
        return max(self.images.evaluations, self.words.evaluations)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        yield from (self.images if seen.vocabulary is None else self.words).guesses(seen, rng, start)


def _in_turn(
    attacks: list[Attack], seen: Observation, rng: Rng, start: Guess | None, hand_over: bool,
) -> Iterator[Guess]:
    """Run attacks one after the other.

    The state carries which one is under way, its own state, its latest guess and the best answer before it.
    """
    first, best, inner = _restored(start, len(attacks))
    for stage in range(first, len(attacks)):
        last = inner if stage == first and start is not None and "stage" in start.state else None
        for last in attacks[stage].guesses(seen, rng / stage, inner):
            over = hand_over and last.step == last.steps and last.notes.get("certain", 0.0) == 1
            done = PARTS * len(attacks) if over else PARTS * stage + PARTS * last.step // last.steps
            state = {"stage": torch.tensor(stage), **_packed("kept", best), **_packed("now", last),
                     **{f"inner.{k}": v for k, v in last.state.items()}}
            yield replace(_lower(seen, best, last), step=done, steps=PARTS * len(attacks), state=state)
            if over:
                return
        if last is not None:
            best = _lower(seen, best, replace(last, state={}))
        inner = best if hand_over else None


def _restored(start: Guess | None, stages: int) -> tuple[int, Guess | None, Guess | None]:
    """The stage to go on with, the best answer before it, and the guess that stage goes on from."""
    if start is None or "stage" not in start.state:
        return 0, None, start
    if start.step == PARTS * stages:
        return stages, None, None
    inner = {k.removeprefix("inner."): v for k, v in start.state.items() if k.startswith("inner.")}
    now = _unpacked("now", start.state)
    return int(start.state["stage"]), _unpacked("kept", start.state), replace(now, state=inner) if now else None


def _lower(seen: Observation, one: Guess | None, other: Guess) -> Guess:
    if one is None or residual(seen, other.batch).cosine <= residual(seen, one.batch).cosine:
        return other
    return one


def _packed(name: str, guess: Guess | None) -> dict[str, torch.Tensor]:
    if guess is None:
        return {}
    extra = {f"{name}.extra.{k}": v for k, v in guess.batch.extra.items()}
    proven = {} if guess.certain is None else {f"{name}.certain": guess.certain}
    return {f"{name}.x": guess.batch.x, f"{name}.y": guess.batch.y, f"{name}.reading": guess.reading, **proven, **extra}


def _unpacked(name: str, state: Mapping[str, torch.Tensor]) -> Guess | None:
    if f"{name}.x" not in state:
        return None
    extra = {k.removeprefix(f"{name}.extra."): v for k, v in state.items() if k.startswith(f"{name}.extra.")}
    return Guess(Batch(state[f"{name}.x"], state[f"{name}.y"], extra), state[f"{name}.reading"],
                 certain=state.get(f"{name}.certain"))
