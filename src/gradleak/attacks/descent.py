"""The one matching loop: change candidates until the replayed update looks like the observed one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import torch
from torch import Tensor

from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.labels import Counted, Labels, Read, count
from gradleak.attacks.parts.objectives import Objective
from gradleak.attacks.parts.optimisers import Adam, Evaluate, Optimiser, Value
from gradleak.attacks.parts.priors import Prior
from gradleak.attacks.parts.schedules import Number
from gradleak.attacks.parts.spaces import Pixels, Space
from gradleak.calculus import Lanes
from gradleak.errors import UsageError
from gradleak.residual import distance
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation

FLOOR = 1e-12
"""Mismatches below this are rounding: their logarithm is not worth minimising."""

PULSE = 2.0
"""Seconds after which a guess is shown in any case, so that a budget or a kill costs no more than that."""

Begin = Literal["normal", "uniform", "grey"]


@dataclass(frozen=True)
class Descent:
    """Gradient matching, `lanes` random starts side by side. Best so far is what matches best, per lane."""

    steps: int
    labels: Labels = field(default_factory=Counted)
    objective: Objective = objectives.cosine
    priors: tuple[tuple[Number, Prior], ...] = ()
    optimiser: Optimiser = field(default_factory=Adam)
    rate: Number = 0.1
    direction: directions.Direction = directions.plain
    log: bool = False
    """Minimise the logarithm of the mismatch: priors then weigh in proportion to what is still unexplained, strong at
    first and never outweighing the evidence, and the search does not stall as the mismatch becomes small."""
    space: Space = field(default_factory=Pixels)
    box: bool = True
    begin: Begin = "normal"
    lanes: int = 1
    yields: int = 40

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lanes < 1:
            raise UsageError(f"steps={self.steps}, restarts={self.lanes}: both must be at least 1")

    @property
    def needs(self) -> frozenset[Know]:
        return self.labels.needs

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.lanes * self.optimiser.per_step)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        run = Matching(self, seen, self.labels.read(seen, rng / "labels"), rng)
        resumed = start is not None and "z" in start.state
        state = dict(start.state) if resumed and start else run.begin(start)
        every = max(1, self.steps // self.yields)
        said = monotonic()
        for step in range(int(state["step"]), self.steps):
            state = run.advance(state, step)
            if (step + 1) % every == 0 or step + 1 == self.steps or monotonic() - said > PULSE:
                yield run.guess(state)
                said = monotonic()


class Matching:
    """One descent on one observation."""

    def __init__(self, plan: Descent, seen: Observation, read: Read, rng: Rng) -> None:
        self.plan, self.seen, self.read, self.rng = plan, seen, read, rng
        self.like = next(iter(seen.params.values())).detach()
        self.n, self.size = count(seen), count(seen) * torch.Size(seen.shape).numel()
        self.fixed = read.labels.to(self.like.device).expand(plan.lanes, -1)
        x, y = self.unpack(self._random())
        self.replay = Lanes(seen.replay, x, y)

    def _random(self) -> Tensor:
        lanes, rng = self.plan.lanes, self.rng
        shape = (lanes, self.size)
        if self.plan.begin == "normal":
            x = (rng / "start").normal(shape, self.like)
        elif self.plan.begin == "uniform":
            x = (rng / "start").uniform(shape, self.like)
        else:
            x = 0.5 + 0.01 * (rng / "start").normal(shape, self.like)
        if not self.read.joint:
            return x
        return torch.cat([x, (rng / "soft labels").normal((lanes, self.n * self.seen.classes), self.like)], 1)

    def begin(self, start: Guess | None) -> dict[str, Tensor]:
        z = self._random()
        if start is not None:
            z[0, : self.size] = self.plan.space.encode(start.batch.x.detach().to(z)).flatten()
        worst = torch.full((len(z),), torch.inf).to(z)
        inner = {f"optimiser.{k}": v for k, v in self.plan.optimiser.begin(z).items()}
        return {"z": z, "best": z.clone(), "match": worst, "step": torch.zeros((), dtype=torch.long), **inner}

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates (R x B x ...) and their labels, hard or soft."""
        x = self.plan.space.decode(z[:, : self.size].reshape(len(z), self.n, *self.seen.shape))
        if not self.read.joint:
            return x, self.fixed
        return x, z[:, self.size :].reshape(len(z), self.n, self.seen.classes).softmax(-1)

    def evaluator(self, step: int) -> Evaluate:
        plan = self.plan
        priors = [(schedules.at(weight, step, plan.steps), prior) for weight, prior in plan.priors]

        def evaluate(z: Tensor) -> Value:
            z = z.detach().requires_grad_()
            x, y = self.unpack(z)
            match = plan.objective(self.replay(x, y), self.seen.update)
            total = match.clamp_min(FLOOR).log() if plan.log else match
            for weight, prior in priors:
                if weight:
                    total = total + weight * prior(x)
            (slope,) = torch.autograd.grad(total.sum(), z)
            return Value(total.detach(), match.detach(), plan.direction(slope))

        return evaluate

    def advance(self, state: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        plan = self.plan
        inner = {k.removeprefix("optimiser."): v for k, v in state.items() if k.startswith("optimiser.")}
        rate = schedules.at(plan.rate, step, plan.steps)
        z, judged, value, inner = plan.optimiser.step(state["z"], inner, self.evaluator(step), rate)
        if plan.box:
            inside = self.unpack(z)[0].clamp(0, 1)
            z[:, : self.size] = plan.space.encode(inside).flatten(1)
        better = value.match < state["match"]
        return {"z": z, "best": torch.where(better[:, None], judged, state["best"]),
                "match": torch.where(better, value.match, state["match"]), "step": torch.tensor(step + 1),
                **{f"optimiser.{k}": v for k, v in inner.items()}}

    def guess(self, state: Mapping[str, Tensor]) -> Guess:
        """The lane whose best iterate has the lowest residual."""
        x, y = self.unpack(state["best"])
        with torch.no_grad():
            updates = self.replay(x, y)
        sizes = [distance({k: v[lane] for k, v in updates.items()}, self.seen.update).cosine for lane in range(len(x))]
        lane = min(range(len(x)), key=lambda i: (sizes[i] != sizes[i], sizes[i]))
        notes = {"label_confidence": float(self.read.confidence.mean())}
        if len(x) > 1:
            notes["lane_spread"] = float((state["z"] - state["z"][:1]).abs().max())
        return Guess(Batch(x[lane], y[lane]), x[lane].clamp(0, 1), int(state["step"]), self.plan.steps, state, notes)

