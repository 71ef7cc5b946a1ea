"""Learn first, then read: the one loop of learned attacks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

from gradleak.attacks.learned.keep import Place, State, digest
from gradleak.rng import Rng
from gradleak.types import Guess, Know, Observation

PULSE = 2.0
"""Seconds between two guesses of a fit under way."""

SAVE = 30.0
"""Seconds between two times a fit under way is kept."""


class Fitting(Protocol):
    """A fit to one kind of update, step by step. All it knows between two steps is in its state, `step` included."""

    @property
    def about(self) -> tuple[object, ...]:
        """What the fit depends on beside the model, the client, the defense and the granted knowledge."""
        ...

    @property
    def steps(self) -> int: ...

    def begin(self, rng: Rng) -> State: ...

    def advance(self, state: State, rng: Rng) -> State:
        """One step; a fit that has learned enough says so by setting `step` to `steps`."""
        ...

    def finish(self, state: State) -> State:
        """What reading needs, from whatever was learned so far."""
        ...

    def read(self, state: State) -> Guess:
        """What a finished state makes of the observed update."""
        ...


class Fits(Protocol):
    """A way to learn to read updates from rehearsals and granted knowledge alone."""

    @property
    def needs(self) -> frozenset[Know]: ...

    @property
    def evaluations(self) -> int: ...

    def open(self, seen: Observation, rng: Rng) -> Fitting: ...


@dataclass(frozen=True)
class Learned:
    """An attack that fits first, or takes a fit that was kept.

    A fit draws from a stream of its digest's, not the trial's: the same question is learned once, and a fit that was
    stopped, here or in another process, goes on to the same end. So there is nothing for `start` to say.
    """

    fits: Fits

    @property
    def needs(self) -> frozenset[Know]:
        return self.fits.needs

    @property
    def evaluations(self) -> int:
        return self.fits.evaluations

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        fitting = self.fits.open(seen, rng)
        place = Place(digest(seen, self.needs, self.fits, fitting.about))
        finished = place.finished()
        if finished is None:
            for state in taught(place, fitting.steps, fitting.begin, fitting.advance):
                finished, step = fitting.finish(state), int(state["step"])
                if step < fitting.steps:
                    yield replace(fitting.read(finished), step=step, steps=fitting.steps)
            assert finished is not None
            place.keep(finished)
        yield replace(fitting.read(finished), step=fitting.steps, steps=fitting.steps)


def taught(
    place: Place, steps: int, begin: Callable[[Rng], State], advance: Callable[[State, Rng], State],
) -> Iterator[State]:
    """The state from time to time, and at the end; kept on the way, and gone on with where it was kept."""
    rng, state = place.rng, place.begun()
    state = begin(rng / "begin") if state is None else state
    said = saved = monotonic()
    while int(state["step"]) < steps:
        state = advance(state, rng / int(state["step"]))
        now = monotonic()
        if now - saved > SAVE:
            place.interrupt(state)
            saved = monotonic()
        if now - said > PULSE:
            yield state
            said = monotonic()
    yield state
