"""Inversion in closed form: one regression from what is sent to what it was computed from."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.combine import ByKind, Stages
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.lessons import Lesson, pictures, words
from gradleak.attacks.learned.penalties import Rows, Scales, chosen, grown, noise, solved
from gradleak.attacks.learned.rehearsal import Blocks, Rehearsal, blocks
from gradleak.attacks.learned.rounds import Rounds
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Attack, Guess, Know, Observation

SAMPLE, MORE, HELD, HEARD = 600, 1400, 300, 32
"""Examples that choose penalties; from which the chosen are tried; held out; that tell how loud a defense is."""

SHOWN, STEADY = 0.02, 1e-8
"""The share of examples that must carry a block's power, and the share of its power that must vary. How strong a block
is that pruning hardly ever leaves anything of, or that a sure model always sends alike, cannot be told: scaled by what
a sample shows, the first example to differ would outweigh all others."""

NUMBERS = 1 << 28
"""Numbers that lead from features to embeddings at most: with long batches and wide words there are fewer features."""

WEAK, STRONG = -3.0, 1.0
"""Where the penalties' logarithms begin. Features that few examples show are worth more the more examples there are."""


@dataclass(frozen=True)
class Ridge:
    """How a regression to images is set up: see `ridge_inverter`."""

    relabel: bool = True
    layers: bool = True
    features: int = 20_000

    needs = frozenset({Know.PUBLIC_DATA})
    evaluations = 5000

    def open(self, seen: Observation, rng: Rng) -> "Regression":
        return Regression(seen, pictures(seen, self.relabel, rng), self.layers, self.features)


@dataclass(frozen=True)
class WordRidge:
    """The same to the embeddings of words, on so many made-up passages."""

    layers: bool
    features: int
    passages: int

    needs = frozenset({Know.PUBLIC_DATA})

    @property
    def evaluations(self) -> int:
        return self.passages

    def open(self, seen: Observation, rng: Rng) -> "Regression":
        lesson = words(seen, self.passages, rng)
        most = NUMBERS // (lesson.places * lesson.sentences.room.table.shape[1])
        return Regression(seen, lesson, self.layers, max(1, min(self.features, most)))


Sample = tuple[Tensor, Tensor]
"""Features of some batches, and what to say of them."""


@dataclass(frozen=True)
class Way:
    """One way to weigh the blocks: averages of features and targets, what noise leaves of a feature, the penalties."""

    centre: Tensor
    mean: Tensor
    gain: Tensor
    scales: Scales


class Regression:
    """One fit: first on a sample, which chooses the penalties, then on the whole lesson."""

    steps = 2

    def __init__(self, seen: Observation, lesson: Lesson, layers: bool, features: int) -> None:
        self.seen, self.lesson, self.layers = seen, lesson, layers
        self.blocks: Blocks = blocks(seen, lesson.shared, features)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """Tried out only where there is something to learn: a fit that was kept needs none."""
        batch, _ = self.lesson.drawn(torch.arange(2))
        return Rehearsal(self.seen, batch.x, batch.y, batch.extra)

    @property
    def about(self) -> tuple[object, ...]:
        return self.lesson.about

    def _slices(self, wide: int) -> list[slice]:
        """The blocks of so many features: those of the update and, if there are twice as many, of it at length 1."""
        each = self.blocks.slices() if self.layers else [slice(0, self.blocks.width)]
        return [slice(part.start + first, part.stop + first) for first in range(0, wide, self.blocks.width)
                for part in each]

    def _rows(self, numbers: Tensor, rng: Rng | None = None) -> Rows:
        """Features and targets of the batches with these numbers, piece by piece."""
        for place, part in enumerate(torch.split(numbers, self.rehearsal.chunk) if len(numbers) else ()):
            batch, target = self.lesson.drawn(part)
            sent = self.rehearsal(batch.x, batch.y, batch.extra, rng / place if rng else None)
            yield self.blocks(sent), target

    def begin(self, rng: Rng) -> State:
        return {"step": torch.tensor(0)}

    def advance(self, state: State, rng: Rng) -> State:
        """First choose, then solve."""
        if int(state["step"]) == 0:
            return {"step": torch.tensor(1), **self._chosen(rng)}
        everyone = torch.arange(len(self.lesson) * int(state["copies"]))
        return {**state, "step": torch.tensor(2), **self._solved(state, self._rows(everyone), len(everyone), rng)}

    def _stack(self, numbers: Tensor, rng: Rng | None = None) -> Sample:
        sent, x = (torch.cat(part) for part in zip(*self._rows(numbers, rng), strict=True))
        return sent, x

    def _chosen(self, rng: Rng) -> dict[str, Tensor]:
        """Several ways to weigh the blocks, each the best near where it began on a sample; of these the one that reads
        held-out batches best after learning from more, and copies of those, where a lesson has any (images seen in a
        mirror), if that reads them better still."""
        order = (rng / "sample").permutation(len(self.lesson))
        held = max(1, min(HELD, len(order) // 10))
        numbers = order[held:][:MORE]
        more, kept = self._stack(numbers), self._stack(order[:held], rng / "held")
        drawn, _ = self._stack(numbers[:HEARD], rng / "drawn")
        exact = torch.equal(more[0][: len(drawn)], drawn)
        ways = [self._scaled(more, drawn, unit, begin, rng)
                for unit, begin in self._ways(exact and not _of_one_length(more[0]))]
        tried = [(way, *self._tried(way, more, kept, exact, rng)) for way in ways]
        way, growth, error = min(tried, key=lambda each: each[2])
        copies = 1
        if self.lesson.mirrored:
            other = self._stack(numbers + len(self.lesson))
            twice = torch.cat([more[0], other[0]]), torch.cat([more[1], other[1]])
            again, less = self._tried(way, twice, kept, exact, rng)
            if less < error:
                copies, growth, error = 2, again, less
        # Penalties grow with the number of examples as they had to grow from the sample to here.
        size = copies * len(numbers) / SAMPLE
        further = math.log(copies * len(self.lesson) / SAMPLE) / math.log(size) if size > 1 else 1.0
        factors = self._factors(way, copies * len(self.lesson)) * growth ** (-further / 2)
        state = {"centre": way.centre, "mean": way.mean, "gain": way.gain, "factors": factors,
                 "error": torch.tensor(error), "copies": torch.tensor(copies)}
        few = more[0][:SAMPLE], more[1][:SAMPLE]
        return {**state, **self._solved(state, iter([few]), len(few[0]), rng)}

    def _tried(self, way: Way, more: Sample, held: Sample, exact: bool, rng: Rng) -> tuple[float, float]:
        """By how much penalties must grow for so many more examples than chose them, and the error on held-out batches.
        What a defense draws makes them grow by itself."""
        factors = self._factors(way, len(more[0]))
        used = factors > 0
        factors, gain = factors[used], way.gain[used]
        rows, loud = (_like(used, sent)[:, used] * factors for sent, _ in (more, held))
        centre = way.centre[used] * factors * gain
        return grown(rows * gain - centre, more[1] - way.mean, loud - centre, held[1] - way.mean,
                     exact and len(rows) > SAMPLE, rng / "grown")

    def _factors(self, way: Way, total: int) -> Tensor:
        return _spread(way.scales.factors(total), self._slices(len(way.centre)))

    def _ways(self, telling: bool) -> list[tuple[bool, float]]:
        """With the update's direction, where it says something else than the update, or without; and where the
        penalties' logarithms begin."""
        return [(False, WEAK), (False, STRONG), *([(True, WEAK)] if telling and self.layers else [])]

    def _scaled(self, more: Sample, drawn: Tensor, unit: bool, begin: float, rng: Rng) -> Way:
        sent, x = more
        if unit:
            sent, drawn = _and_unit(sent), _and_unit(drawn)
        slices = self._slices(sent.shape[1])
        heard = noise(sent[: len(drawn)], drawn, slices)
        centre, mean = sent.mean(0), x.mean(0)
        telling = torch.stack([_telling(sent[:, part], centre[part]) for part in slices])
        gain = _spread(heard.gain * telling, slices)
        scales = chosen((sent[:SAMPLE] - centre) * gain, x[:SAMPLE] - mean, slices, heard, len(self.lesson), begin,
                        rng / "sketch")
        return Way(centre, mean, gain, scales)

    def _solved(self, state: State, rows: Rows, total: int, rng: Rng) -> dict[str, Tensor]:
        """The regression as one product and a sum, on the features that are of use; and what the lesson learns from
        its answers on batches that it was not taught."""
        factors = state["factors"]
        used = factors > 0
        spread = (factors * state["gain"])[used]
        scaled = ((_like(used, sent)[:, used] * spread, x) for sent, x in rows)
        line = solved(scaled, total, state["centre"][used] * spread, state["mean"])
        found = {"weights": line.weights * factors[used, None], "shift": line.mean - line.centre @ line.weights,
                 "used": used}
        fresh = self._rows(self.lesson.fresh, rng / "fresh")
        return {**found, **self.lesson.learned([(_said(found, sent), target) for sent, target in fresh])}

    def finish(self, state: State) -> State:
        spent = ("step", "centre", "mean", "gain", "factors", "copies")
        return {name: value for name, value in state.items() if name not in spent}

    def read(self, state: State) -> Guess:
        sent = self.blocks({name: value[None] for name, value in self.seen.update.items()})
        return replace(self.lesson.guess(_said(state, sent)[0], state), notes={"expected_mse": float(state["error"])})


def _said(state: State, sent: Tensor) -> Tensor:
    return _like(state["used"], sent)[:, state["used"]] @ state["weights"] + state["shift"]


def _telling(rows: Tensor, centre: Tensor) -> Tensor:
    """Whether enough examples show a block, and show it differently."""
    power = (rows - centre).square().sum(1)
    carried = power.sum().square() >= SHOWN * len(rows) * power.square().sum()
    return carried & (power.sum() > STEADY * rows.square().sum())


def _and_unit(rows: Tensor) -> Tensor:
    """Features, and the same again of an update of length 1: how long it was depends on the image, too."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.cat([rows, rows / length.clamp_min(1e-30)], 1)


def _of_one_length(rows: Tensor) -> bool:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return float(length.std()) <= 1e-3 * float(length.mean())


def _like(used: Tensor, rows: Tensor) -> Tensor:
    return _and_unit(rows) if len(used) > rows.shape[1] else rows


def _spread(blocks: Tensor, slices: list[slice]) -> Tensor:
    """A number a block as a number a feature."""
    return blocks.repeat_interleave(torch.tensor([part.stop - part.start for part in slices]))


@register("attack", "ridge_inverter")
def ridge_inverter(
    relabel: bool = True, layers: bool = True, features: int | None = None, then: Attack | None = None,
    passages: int = 5000, rounds: int = 5,
) -> ByKind | Stages:
    """Solve for the map from updates to what they were computed from in closed form, through the defense.

    Public examples must have been granted (public_data). Images: the labels are read off the update; every public image
    is given them, played through the client and its defense as far as they are known, and one ridge regression leads
    from what would be sent back to the image. Each layer has a penalty of its own, chosen by the error on images left
    out, which also says whether the update's direction should be added, and whether mirrored copies of the images; what
    a defense draws is integrated out. relabel=false and layers=false are ablations (labels as they come; one penalty);
    models with more weights than `features` (20,000; for text 50,000) are hashed. Batches are solved for as a whole, in
    the order of their labels.

    Text: the same on so many made-up `passages`, their words drawn as often as public text has them, to the words'
    embeddings; then `rounds` more, each on a fifth as many that are drawn as the last round believes: among them an
    update is more nearly linear in the words. After each, words are tried in their places by how they explain the
    update; the round that explains it best is the answer.

    `then` names an attack that starts from the answer, such as ig(steps=1000, restarts=1, rate=0.01); what explains the
    update better is kept.
    """
    for name, value, least in (("features", features, 1), ("passages", passages, 100), ("rounds", rounds, 0)):
        if value is not None and value < least:
            raise UsageError(f"ridge_inverter({name}={value}): at least {least}")
    of_images, of_words = features or 20_000, features or 50_000
    inverter = ByKind(Learned(Ridge(relabel, layers, of_images)),
                      Rounds(Learned(WordRidge(layers, of_words, passages)), rounds, passages // 5, of_words))
    return inverter if then is None else Stages((inverter, then))
