"""Inversion in closed form: one regression from what is sent to what it was computed from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.examples import Pictures, public
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.keep import State
from gradleak.attacks.learned.penalties import Rows, chosen, noise, solved
from gradleak.attacks.learned.rehearsal import Blocks, Rehearsal, blocks
from gradleak.attacks.parts.labels import Known, count
from gradleak.errors import Unsuited, UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation

SAMPLE = 700
"""Examples that choose the penalties."""

HEARD = 32
"""Examples that tell how loud a random defense is."""


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

    @property
    def _slices(self) -> list[slice]:
        return self.blocks.slices() if self.plan.layers else [slice(0, self.blocks.width)]

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
        """By how much each block is taken, from a sample, and the regression on that."""
        numbers = (rng / "sample").permutation(len(self.pictures))[:SAMPLE]
        sent, x = (torch.cat(part) for part in zip(*self._rows(numbers), strict=True))
        drawn = torch.cat([part for part, _ in self._rows(numbers[:HEARD], rng / "drawn")])
        heard = noise(sent[: len(drawn)], drawn, self._slices)
        centre, mean = sent.mean(0), x.mean(0)
        left = (sent - centre) * self._spread(heard.gain)
        scales = chosen(left, x - mean, self._slices, heard, len(self.pictures), rng / "sketch")
        state = {"centre": centre, "mean": mean, "gain": heard.gain, "factors": scales.factors,
                 "error": torch.tensor(scales.error)}
        return {**state, **self._solved(state, iter([(sent, x)]), len(numbers))}

    def _solved(self, state: State, rows: Rows, total: int) -> dict[str, Tensor]:
        """The regression as one product and a sum, on the features that are of use."""
        factors = self._spread(state["factors"])
        used = factors > 0
        spread = (factors * self._spread(state["gain"]))[used]
        line = solved(((sent[:, used] * spread, x) for sent, x in rows), total, state["centre"][used] * spread,
                      state["mean"])
        return {"weights": line.weights * factors[used, None], "shift": line.mean - line.centre @ line.weights,
                "used": used}

    def _spread(self, blocks: Tensor) -> Tensor:
        """A number a block as a number a feature."""
        sizes = torch.tensor([part.stop - part.start for part in self._slices])
        return blocks.repeat_interleave(sizes)

    def finish(self, state: State) -> State:
        return {name: state[name] for name in ("weights", "shift", "used", "error")}

    def read(self, state: State) -> Guess:
        seen = self.seen
        sent = self.blocks({name: value[None] for name, value in seen.update.items()})
        found = sent[:, state["used"]] @ state["weights"] + state["shift"]
        x = found.reshape(len(self.labels), *seen.shape).clamp(0, 1)
        return Guess(Batch(x, self.labels), x, notes={"expected_mse": float(state["error"])})


@register("attack", "ridge_inverter")
def ridge_inverter(relabel: bool = True, layers: bool = True, features: int = 20_000) -> Learned:
    """Solve for the map from updates to images in closed form, on public images (knowledge public_data).

    The labels are read off the update; every public image is given them, played through the client and its defense as
    far as they are known, and one ridge regression leads from what would be sent back to the image. Each layer has a
    penalty of its own: those that do best on images left out; what a defense draws is integrated out. relabel=false and
    layers=false are ablations (labels as they come; one penalty); models with more weights than `features` are hashed.
    Batches are solved for as a whole, in the order of their labels.
    """
    if features < 1:
        raise UsageError(f"ridge_inverter(features={features}): at least 1")
    return Learned(Ridge(relabel, layers, features))
