"""Inversion in closed form: one regression from what is sent to what it was computed from."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.examples import Pictures, public
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.penalties import Rows, chosen, grown, noise, solved
from gradleak.attacks.learned.rehearsal import Blocks, Rehearsal, blocks
from gradleak.attacks.parts.labels import Known, count
from gradleak.errors import Unsuited, UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation

SAMPLE, MORE, HELD, HEARD = 700, 2000, 300, 32
"""Examples that choose penalties; from which the chosen are tried; held out; that tell how loud a defense is."""

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
        x, y = self.pictures(torch.arange(2))
        self.rehearsal = Rehearsal(seen, x, y, {})

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
        everyone = torch.arange(len(self.pictures))
        line = self._solved(state, self._rows(everyone), len(everyone))
        return {**state, "step": torch.tensor(2), **line}

    def _chosen(self, rng: Rng) -> dict[str, Tensor]:
        """Several ways to weigh the blocks, each the best near where it began on a sample; of these the one that reads
        held-out images best after learning from more."""
        order = (rng / "sample").permutation(len(self.pictures))
        held = max(1, min(HELD, len(order) // 10))
        sent, x = (torch.cat(part) for part in zip(*self._rows(order[held:][:MORE]), strict=True))
        loud, truth = (torch.cat(part) for part in zip(*self._rows(order[:held], rng / "held"), strict=True))
        drawn = torch.cat([part for part, _ in self._rows(order[held:][:HEARD], rng / "drawn")])
        exact = torch.equal(sent[: len(drawn)], drawn)
        best: dict[str, Tensor] = {}
        for unit, begin in self._ways(exact and not _of_one_length(sent)):
            state = self._scaled(*((_and_unit(sent), _and_unit(drawn)) if unit else (sent, drawn)), x, begin, rng)
            state |= self._tried(state, (sent, x), (loud, truth), exact, rng)
            if not best or float(state["error"]) < float(best["error"]):
                best = state
        return {**best, **self._solved(best, iter([(sent, x)]), len(x))}

    def _tried(
        self, state: State, more: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], exact: bool, rng: Rng,
    ) -> dict[str, Tensor]:
        """The error on held-out images; and penalties for more examples than chose them, grown as they had to grow
        here. What a defense draws makes them grow by itself."""
        used = state["factors"] > 0
        factors = state["factors"][used]
        rows, loud = (_like(used, sent)[:, used] * factors for sent, _ in (more, held))
        gain = state["gain"][used]
        centre = state["centre"][used] * factors * gain
        growth, error = grown(rows * gain - centre, more[1] - state["mean"], loud - centre, held[1] - state["mean"],
                              exact and len(rows) > SAMPLE, rng / "grown")
        further = math.log(len(self.pictures) / SAMPLE) / math.log(len(rows) / SAMPLE) if len(rows) > SAMPLE else 1.0
        return {"error": torch.tensor(error), "factors": state["factors"] * growth ** (-further / 2)}

    def _ways(self, telling: bool) -> list[tuple[bool, float]]:
        """With the update's direction, where it says something else than the update, or without; and where the
        penalties' logarithms begin."""
        return [(False, WEAK), (False, STRONG), *([(True, WEAK)] if telling and self.plan.layers else [])]

    def _scaled(self, sent: Tensor, drawn: Tensor, x: Tensor, begin: float, rng: Rng) -> dict[str, Tensor]:
        slices = self._slices(sent.shape[1])
        heard = noise(sent[: len(drawn)], drawn, slices)
        centre, mean = sent.mean(0), x.mean(0)
        left = (sent[:SAMPLE] - centre) * _spread(heard.gain, slices)
        factors = chosen(left, x[:SAMPLE] - mean, slices, heard, len(self.pictures), begin, rng / "sketch").factors
        return {"centre": centre, "mean": mean, "gain": _spread(heard.gain, slices),
                "factors": _spread(factors, slices)}

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
def ridge_inverter(relabel: bool = True, layers: bool = True, features: int = 20_000) -> Learned:
    """Solve for the map from updates to images in closed form, on public images (knowledge public_data).

    The labels are read off the update; every public image is given them, played through the client and its defense as
    far as they are known, and one ridge regression leads from what would be sent back to the image. Each layer has a
    penalty of its own, chosen by the error on images left out, which also says whether the update's direction should
    be added; what a defense draws is integrated out. relabel=false and layers=false are ablations (labels as they come;
    one penalty); models with more weights than `features` are hashed. Batches are solved for as a whole, in the order
    of their labels.
    """
    if features < 1:
        raise UsageError(f"ridge_inverter(features={features}): at least 1")
    return Learned(Ridge(relabel, layers, features))
