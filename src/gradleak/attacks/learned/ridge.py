"""Inversion in closed form: one regression from what is sent to what it was computed from."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.combine import Stages
from gradleak.attacks.learned.examples import Pictures, public
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.penalties import Rows, Scales, chosen, grown, noise, solved
from gradleak.attacks.learned.rehearsal import Blocks, Rehearsal, blocks
from gradleak.attacks.parts.labels import Known, count
from gradleak.errors import Unsuited, UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Attack, Batch, Guess, Know, Observation

SAMPLE, MORE, HELD, HEARD = 600, 1400, 300, 32
"""Examples that choose penalties; from which the chosen are tried; held out; that tell how loud a defense is."""

SHOWN, STEADY = 0.02, 1e-8
"""The share of examples that must carry a block's power, and the share of its power that must vary. How strong a block
is that pruning hardly ever leaves anything of, or that a sure model always sends alike, cannot be told: scaled by what
a sample shows, the first example to differ would outweigh all others."""

WEAK, STRONG = -3.0, 1.0
"""Where the penalties' logarithms begin. Features that few examples show are worth more the more examples there are."""


@dataclass(frozen=True)
class Ridge:
    """How the regression is set up: see `ridge_inverter`."""

    relabel: bool = True
    layers: bool = True
    features: int = 20_000

    needs = frozenset({Know.PUBLIC_DATA})
    evaluations = 5000

    def open(self, seen: Observation, rng: Rng) -> "Regression":
        if seen.vocabulary is not None:
            raise Unsuited("ridge_inverter reads images, the data are text; use lti")
        labels = Known().read(seen, rng / "labels").labels
        return Regression(self, seen, labels)


Sample = tuple[Tensor, Tensor]
"""Features of some batches, and their images."""


@dataclass(frozen=True)
class Way:
    """One way to weigh the blocks: averages of features and images, what noise leaves of a feature, the penalties."""

    centre: Tensor
    mean: Tensor
    gain: Tensor
    scales: Scales


class Regression:
    """One fit: first on a sample, which chooses the penalties, then on all public images."""

    steps = 2

    def __init__(self, plan: Ridge, seen: Observation, labels: Tensor) -> None:
        self.plan, self.seen, self.labels = plan, seen, labels
        known, shared = public(seen), labels if plan.relabel else None
        self.pictures = Pictures(known.readings.to(next(iter(seen.params.values()))), known.labels, shared, count(seen))
        if len(self.pictures) < 3:
            raise Unsuited(f"{len(self.pictures)} public images are too few to learn from; name more")
        self.blocks: Blocks = blocks(seen, tuple(labels.tolist()) if plan.relabel else (), plan.features)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """Tried out only where there is something to learn: a fit that was kept needs none."""
        return Rehearsal(self.seen, *self.pictures(torch.arange(2)), {})

    @property
    def about(self) -> tuple[object, ...]:
        return tuple(self.labels.tolist()) if self.plan.relabel else ()

    def _slices(self, wide: int) -> list[slice]:
        """The blocks of so many features: those of the update and, if there are twice as many, of it at length 1."""
        each = self.blocks.slices() if self.plan.layers else [slice(0, self.blocks.width)]
        return [slice(part.start + first, part.stop + first) for first in range(0, wide, self.blocks.width)
                for part in each]

    def _rows(self, numbers: Tensor, rng: Rng | None = None) -> Rows:
        """Features and images of the batches with these numbers, piece by piece."""
        for place, part in enumerate(torch.split(numbers, self.rehearsal.chunk)):
            x, y = self.pictures(part)
            yield self.blocks(self.rehearsal(x, y, {}, rng / place if rng else None)), x.flatten(1)

    def begin(self, rng: Rng) -> State:
        return {"step": torch.tensor(0)}

    def advance(self, state: State, rng: Rng) -> State:
        """First choose, then solve."""
        if int(state["step"]) == 0:
            return {"step": torch.tensor(1), **self._chosen(rng)}
        everyone = torch.arange(len(self.pictures) * int(state["copies"]))
        return {**state, "step": torch.tensor(2), **self._solved(state, self._rows(everyone), len(everyone))}

    def _stack(self, numbers: Tensor, rng: Rng | None = None) -> Sample:
        sent, x = (torch.cat(part) for part in zip(*self._rows(numbers, rng), strict=True))
        return sent, x

    def _chosen(self, rng: Rng) -> dict[str, Tensor]:
        """Several ways to weigh the blocks, each the best near where it began on a sample; of these the one that reads
        held-out images best after learning from more, and mirrored copies of those if that reads them better still."""
        order = (rng / "sample").permutation(len(self.pictures))
        held = max(1, min(HELD, len(order) // 10))
        numbers = order[held:][:MORE]
        more, kept = self._stack(numbers), self._stack(order[:held], rng / "held")
        drawn, _ = self._stack(numbers[:HEARD], rng / "drawn")
        exact = torch.equal(more[0][: len(drawn)], drawn)
        ways = [self._scaled(more, drawn, unit, begin, rng)
                for unit, begin in self._ways(exact and not _of_one_length(more[0]))]
        tried = [(way, *self._tried(way, more, kept, exact, rng)) for way in ways]
        way, growth, error = min(tried, key=lambda each: each[2])
        copies, twice = 1, self._stack(numbers + len(self.pictures))
        twice = torch.cat([more[0], twice[0]]), torch.cat([more[1], twice[1]])
        again, less = self._tried(way, twice, kept, exact, rng)
        if less < error:
            copies, growth, error = 2, again, less
        # Penalties grow with the number of examples as they had to grow from the sample to here.
        size = copies * len(numbers) / SAMPLE
        further = math.log(copies * len(self.pictures) / SAMPLE) / math.log(size) if size > 1 else 1.0
        factors = self._factors(way, copies * len(self.pictures)) * growth ** (-further / 2)
        state = {"centre": way.centre, "mean": way.mean, "gain": way.gain, "factors": factors,
                 "error": torch.tensor(error), "copies": torch.tensor(copies)}
        few = more[0][:SAMPLE], more[1][:SAMPLE]
        return {**state, **self._solved(state, iter([few]), len(few[0]))}

    def _tried(self, way: Way, more: Sample, held: Sample, exact: bool, rng: Rng) -> tuple[float, float]:
        """By how much penalties must grow for so many more examples than chose them, and the error on held-out images.
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
        return [(False, WEAK), (False, STRONG), *([(True, WEAK)] if telling and self.plan.layers else [])]

    def _scaled(self, more: Sample, drawn: Tensor, unit: bool, begin: float, rng: Rng) -> Way:
        sent, x = more
        if unit:
            sent, drawn = _and_unit(sent), _and_unit(drawn)
        slices = self._slices(sent.shape[1])
        heard = noise(sent[: len(drawn)], drawn, slices)
        centre, mean = sent.mean(0), x.mean(0)
        telling = torch.stack([_telling(sent[:, part], centre[part]) for part in slices])
        gain = _spread(heard.gain * telling, slices)
        scales = chosen((sent[:SAMPLE] - centre) * gain, x[:SAMPLE] - mean, slices, heard, len(self.pictures), begin,
                        rng / "sketch")
        return Way(centre, mean, gain, scales)

    def _solved(self, state: State, rows: Rows, total: int) -> dict[str, Tensor]:
        """The regression as one product and a sum, on the features that are of use."""
        factors = state["factors"]
        used = factors > 0
        spread = (factors * state["gain"])[used]
        scaled = ((_like(used, sent)[:, used] * spread, x) for sent, x in rows)
        line = solved(scaled, total, state["centre"][used] * spread, state["mean"])
        return {"weights": line.weights * factors[used, None], "shift": line.mean - line.centre @ line.weights,
                "used": used}

    def finish(self, state: State) -> State:
        return {name: state[name] for name in ("weights", "shift", "used", "error")}

    def _read(self, state: State, sent: Tensor) -> Tensor:
        found = _like(state["used"], sent)[:, state["used"]] @ state["weights"] + state["shift"]
        return found.clamp(0, 1)

    def read(self, state: State) -> Guess:
        sent = self.blocks({name: value[None] for name, value in self.seen.update.items()})
        x = self._read(state, sent).reshape(len(self.labels), *self.seen.shape)
        return Guess(Batch(x, self.labels), x, notes={"expected_mse": float(state["error"])})


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
    relabel: bool = True, layers: bool = True, features: int = 20_000, then: Attack | None = None,
) -> Learned | Stages:
    """Solve for the map from updates to images in closed form, on public images (knowledge public_data).

    The labels are read off the update; every public image is given them, played through the client and its defense as
    far as they are known, and one ridge regression leads from what would be sent back to the image. Each layer has a
    penalty of its own, chosen by the error on images left out, which also says whether the update's direction should
    be added, and whether mirrored copies of the images; what a defense draws is integrated out. relabel=false and
    layers=false are ablations (labels as they come; one penalty); models with more weights than `features` are hashed.
    Batches are solved for as a whole, in the order of their labels. `then` names an attack that starts from the answer,
    such as ig(steps=1000, restarts=1, rate=0.01); what explains the update better is kept.
    """
    if features < 1:
        raise UsageError(f"ridge_inverter(features={features}): at least 1")
    inverter = Learned(Ridge(relabel, layers, features))
    return inverter if then is None else Stages((inverter, then))
