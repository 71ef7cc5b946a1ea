"""The one matching loop: change candidates until the replayed update looks like the observed one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import cast

import torch
from torch import Tensor

from gradleak.attacks.parts import directions, moves, objectives, schedules
from gradleak.attacks.parts.labels import Counted, Labels, Read, Said, count, handed
from gradleak.attacks.parts.objectives import Objective
from gradleak.attacks.parts.optimisers import Adam, Evaluate, Optimiser, Value
from gradleak.attacks.parts.priors import Moment, Prior
from gradleak.attacks.parts.sampled import sampled
from gradleak.attacks.parts.schedules import Number
from gradleak.attacks.parts.spaces import Pixels, Space
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.attacks.parts.views import View
from gradleak.attacks.scoring import Scoring
from gradleak.attacks.search import Beam, Rearrange, Substitute
from gradleak.errors import Unsuited, UsageError
from gradleak.factored import Reference, Stacked, dense
from gradleak.lanes import Lanes
from gradleak.norms import Statistics, watching
from gradleak.residual import distance, residual
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch, Guess, Know, Observation, following

FLOOR = 1e-12
"""Mismatches below this are rounding: their logarithm is not worth minimising."""

PULSE = 2.0
"""Seconds after which a guess is shown in any case, so that a budget or a kill costs no more than that."""

NEAR = 1e-4
"""Answers nearer than this are compared in full precision."""

EXPLAINED = 1e-8
"""Words whose replay is nearer than this to the update (cosine distance) are the words: nothing is left to search."""


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
    starts: int = 1
    """Random candidates of which the best begins; for text then as many orders of its words."""
    search: Rearrange | None = None
    refine: Substitute | None = None
    screen: Objective | None = None
    """What judges whole candidates, where the objective itself is too slow for that."""
    beam: Beam | None = None
    """What searches for words after the last step, sweep by sweep."""
    judge: Objective = objectives.cosine
    """By what answers in words are compared."""
    norms: tuple[Number, Moment] | None = None
    """How much the statistics at the model's BatchNorm layers count, and how they are compared."""
    view: View | None = None
    """What of the update is matched; all of it if none."""
    jitter: Number = 0.0
    """Noise added to the unknowns at each step, times the rate."""
    lanes: int = 1
    yields: int = 40

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lanes < 1 or self.starts < 1:
            raise UsageError(f"steps={self.steps}, restarts={self.lanes}, starts={self.starts}: each at least 1")

    @property
    def needs(self) -> frozenset[Know]:
        return self.labels.needs

    @property
    def uses(self) -> tuple[str, ...]:
        return () if self.search is None or not self.search.weight else (self.search.prior.name,)

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.lanes * self.optimiser.per_step)

    @property
    def ends(self) -> int:
        """Its last step, the sweeps included."""
        return self.steps + (self.beam.sweeps if self.beam else 0)

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        if seen.next_word and (self.search or self.beam or self.starts > 1):
            raise Unsuited("the model predicts words, so that its labels are the sentences themselves, and this attack "
                           "moves words under labels that stay; use tag or lti")
        resumed = start is not None and "z" in start.state
        labels = Said() if seen.next_word else self.labels
        read = handed(seen, start, labels.read(seen, rng / "labels"))
        run = Matching(self, seen, read, rng, _there(seen, start))
        state = dict(start.state) if resumed and start else run.begin(start)
        every = max(1, self.steps // self.yields)
        said = monotonic()
        while int(state["step"]) < self.ends:
            step = int(state["step"])
            state = run.advance(state, step) if step < self.steps else run.sweep(state, step)
            due = (step + 1) % every == 0 or step + 1 >= self.steps
            if due:
                state = run.judge(state)
            if run.explained(state):
                state["step"] = torch.tensor(self.ends)
            if due or run.explained(state) or monotonic() - said > PULSE:
                yield run.guess(state)
                said = monotonic()
            if run.explained(state):
                return


class Matching:
    """One descent on one observation."""

    def __init__(
        self, plan: Descent, seen: Observation, read: Read, rng: Rng, there: Tensor | None = None,
    ) -> None:
        self.plan, self.seen, self.read, self.rng = plan, seen, read, rng
        self.n = count(seen)
        self.room = plan.space.open(seen, self.n, there)
        self.size = self.room.unknowns
        self.like = next(iter(seen.params.values())).detach()
        self.fixed = read.labels.to(self.like.device)
        words = self.room.tokens > 0
        z = self._random(2 if words else plan.lanes, rng)
        self.replay = Lanes(seen.replay, *self.unpack(z), self.extra(z), factor=words, apart=plan.norms is not None)
        self.reference = Reference(seen.update, self.room.tokens)
        self.statistics = _told(seen) if plan.norms is not None else {}
        self._scorings: dict[Objective, Scoring] = {}
        self.scoring = self._scored(plan.screen or plan.objective)

    def _scored(self, objective: Objective) -> Scoring:
        """By an objective; where entries are known to be left out, over a sample of those that were sent."""
        if objective not in self._scorings:
            dropped = self.room.masks if isinstance(self.room, TokenRoom) else None
            taken = sampled(objective, self.seen.update) if self.replay.masked else objective
            self._scorings[objective] = Scoring(self.replay, taken, self.reference, dropped.axes if dropped else None)
        return self._scorings[objective]

    def _random(self, lanes: int, rng: Rng) -> Tensor:
        z = self.room.begin(lanes, rng / "start")
        if not self.read.joint:
            return z
        return torch.cat([z, (rng / "soft labels").normal((lanes, self.n * self.seen.classes), self.like)], 1)

    def begin(self, start: Guess | None) -> dict[str, Tensor]:
        z = self._random(self.plan.lanes, self.rng)
        if start is not None:
            z[0, : self.size] = self.room.encode(start.batch.x.detach().to(z)[None])[0]
            kept = self.room.kept(start.batch.extra)
            if kept is not None:
                z[0, self._beside] = kept.to(z)
        elif self.plan.starts > 1:
            for lane in range(len(z)):
                z[lane] = self._best_start(self.rng / "starts" / lane)
        worst = torch.full((len(z),), torch.inf).to(z)
        inner = {f"optimiser.{k}": v for k, v in self.plan.optimiser.begin(z).items()}
        state = {"z": z, "best": z.clone(), "match": worst, "step": torch.zeros((), dtype=torch.long), **inner}
        if isinstance(self.room, TokenRoom):
            state |= {"there": self.room.mask, "labels": self.fixed}
        if start is None or not isinstance(self.room, TokenRoom) or start.reading.shape != self.room.shape[:2]:
            return state
        y = following(start.reading) if self.seen.next_word else self.unpack(z)[1][0]
        return self.tell(state, start.reading, y, z[0, self._beside])

    def _best_start(self, rng: Rng) -> Tensor:
        """Of several random candidates the one that matches best; then of several orders of its words."""
        many = self._random(self.plan.starts, rng)
        x, y = self.unpack(many)
        z = many[:1].clone()
        z[0, : self.size] = self.room.encode(self._best(x, y[0])[None])[0]
        if isinstance(self.room, TokenRoom):
            now, generator = self.unpack(z)[0], rng.numpy()
            orders = [moves.permutations(inside, self.plan.starts, generator) for inside in self.room.inside]
            mixed = torch.stack([now[0, i][order] for i, order in enumerate(orders)], 1)
            z[0, : self.size] = self.room.encode(self._best(mixed, y[0])[None])[0]
        return z[0]

    def _best(self, candidates: Tensor, y: Tensor) -> Tensor:
        many = len(candidates)
        scores = self.scoring(candidates, y.expand(many, *y.shape), self.room.extra(many))
        return candidates[int(torch.nan_to_num(scores, nan=torch.inf).argmin())]

    @property
    def words(self) -> TokenRoom:
        if not isinstance(self.room, TokenRoom):
            raise Unsuited("words are searched for in text only")
        return self.room

    @property
    def rescoring(self) -> Scoring | None:
        """Where candidates are only screened: what judges the best of them again."""
        return None if self.plan.screen is None else self._scored(self.plan.objective)

    @property
    def told_lengths(self) -> bool:
        """Whether the sentences' lengths are known for certain."""
        return Know.LENGTHS in self.seen.facts or self.n == 1

    @property
    def told_labels(self) -> bool:
        return Know.LABELS in self.seen.facts

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates (R x B x ...) and their labels, hard or soft."""
        x = self.room.decode(z[:, : self.size])
        if self.seen.next_word:
            return x, self.words.said(x)
        if not self.read.joint:
            return x, self.fixed.expand(len(z), *self.fixed.shape)
        return x, z[:, self._beside.stop :].reshape(len(z), self.n, self.seen.classes).softmax(-1)

    @property
    def _beside(self) -> slice:
        """Where the unknowns beside the data are."""
        return slice(self.size, self.size + self.room.beside)

    def extra(self, z: Tensor) -> dict[str, Tensor]:
        """What goes to the model beside these candidates."""
        return self.room.extra(len(z), z[:, self._beside] if self.room.beside else None)

    def evaluator(self, step: int) -> Evaluate:
        plan, objective = self.plan, self._scored(self.plan.objective).objective
        priors = [(schedules.at(weight, step, plan.steps), prior) for weight, prior in plan.priors]
        norms = schedules.at(plan.norms[0], step, plan.steps) if plan.norms else 0.0

        def evaluate(z: Tensor) -> Value:
            z = z.detach().requires_grad_()
            x, y = self.unpack(z)
            with watching() as met:
                stacked = self.replay(x, y, self.extra(z))
            match = objective(*self._viewed(stacked, step))
            total = match.clamp_min(FLOOR).log() if plan.log else match
            if norms and plan.norms:
                each = len(met) // len(x)
                total = total + norms * torch.stack([plan.norms[1].gap(met[each * lane : each * (lane + 1)],
                                                                       self.statistics, x) for lane in range(len(x))])
            for weight, prior in priors:
                if weight:
                    total = total + weight * prior(x, self.room)
            (slope,) = torch.autograd.grad(total.sum(), z)
            return Value(total.detach(), match.detach(), plan.direction(slope))

        return evaluate

    def _viewed(self, stacked: Stacked, step: int) -> tuple[Stacked, Reference]:
        if self.plan.view is None:
            return stacked, self.reference
        return self.plan.view(stacked, self.reference, step, self.plan.steps, self.rng / "view")

    def _goal(self, step: int) -> tuple[object, ...]:
        """What the search is after at a step: which layers, and which priors have set in."""
        plan = self.plan
        weights = [weight for weight, _ in (*plan.priors, *([plan.norms] if plan.norms else []))]
        return (plan.view.stage(step, plan.steps) if plan.view else 0,
                *[schedules.at(weight, max(step, 0), plan.steps) > 0 for weight in weights])

    def _milestone(self, state: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """What had come back when a prior set in."""
        if self.room.tokens or not step or self._goal(step)[1:] == self._goal(step - 1)[1:]:
            return {}
        return {f"earlier.{step}": self.room.answer(*self.unpack(state["best"]))[1]}

    def advance(self, state: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        plan = self.plan
        inner = {k.removeprefix("optimiser."): v for k, v in state.items() if k.startswith("optimiser.")}
        rate = schedules.at(plan.rate, step, plan.steps)
        z, judged, value, inner = plan.optimiser.step(state["z"], inner, self.evaluator(step), rate)
        settled = self.room.settle(self.unpack(z)[0])
        if settled is not None:
            z[:, : self.size] = self.room.encode(settled)
        z[:, self._beside] = z[:, self._beside].clamp(0, 1)
        jitter = rate * schedules.at(plan.jitter, step, plan.steps)
        if jitter:
            z[:, : self.size] += jitter * (self.rng / "jitter" / step).normal((len(z), self.size), z)
        changed = self._goal(step) != self._goal(step - 1)  # another mismatch: what was best no longer compares
        state = {**state, **self._milestone(state, step)}
        better = (value.match < state["match"]) | changed
        moved = {**state, "z": z, "best": torch.where(better[:, None], judged, state["best"]),
                 "match": torch.where(better, value.match, state["match"]), "step": torch.tensor(step + 1),
                 **{f"optimiser.{k}": v for k, v in inner.items()}}
        if plan.search is not None:
            for number in range(plan.search.rounds(step + 1, plan.steps)):
                moved = self.judge(plan.search.improve(self, moved, self.rng / "search" / step / number))
                if plan.refine is not None and not self.explained(moved):
                    moved = plan.refine.improve(self, moved, self.rng / "refine" / step / number)
        return moved

    def sweep(self, state: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """One pass of the beam; where it finds nothing better the others are left out."""
        assert self.plan.beam is not None
        before = float(state["told.off"])
        state = self.plan.beam.improve(self, state, self.rng / "beam" / step)
        idle = float(state["told.off"]) >= before
        return {**state, "step": torch.tensor(self.plan.ends if idle else step + 1)}

    def judge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """For words: keep the answer whose replay is nearest to the update, of those so far and of all lanes now."""
        if not isinstance(self.room, TokenRoom):
            return state
        both = torch.cat([state["z"], state["best"]])
        x, y = self.unpack(both)
        ids, beside = self.room.readings(x, both[:, self._beside])
        if self.seen.next_word:
            y = following(ids.flatten(0, 1)).view(ids.shape)
        y = y.repeat(len(ids) // len(y), *[1] * (y.ndim - 1))
        told = self.room.told(ids, y, beside)
        off = self._scored(self.plan.judge)(told.x, y, told.extra)
        lane = int(torch.nan_to_num(off, nan=torch.inf).argmin())
        near = not float(off[lane]) >= NEAR
        return self.tell(state, ids[lane], y[lane], beside[lane], None if near else float(off[lane]))

    def slope(self, x: Tensor, y: Tensor, extra: Mapping[str, Tensor] | None = None) -> Value:
        """The objective at stacked candidates, and its gradient in them."""
        x = x.detach().requires_grad_()
        given = self.room.extra(len(x)) if extra is None else extra
        match = self.scoring.objective(self.replay(x, y, given), self.reference)
        (gradient,) = torch.autograd.grad(match.sum(), x)
        return Value(match.detach(), match.detach(), gradient)

    def tell(
        self, state: dict[str, Tensor], ids: Tensor, y: Tensor, beside: Tensor | None = None, off: float | None = None,
    ) -> dict[str, Tensor]:
        """An answer, if it is better than the one so far; `off`, if known, is how far it is from the update."""
        if off is None:
            off = self._off(self.words.told(ids[None], y[None], None if beside is None else beside[None]))
        if "told.off" in state and off >= float(state["told.off"]):
            return state
        kept = {} if beside is None or not self.room.beside else {"told.beside": beside}
        return {**state, "told.ids": ids, "told.y": y, "told.off": torch.tensor(off, dtype=torch.float64), **kept}

    def _off(self, told: Batch) -> float:
        """How far one answer is from the update; near it, in full precision."""
        if self.plan.judge is not objectives.cosine:
            off = float(self._scored(self.plan.judge)(told.x, told.y, told.extra))
            if not off < NEAR:
                return off
        return residual(self.seen, _lane(told, 0)).cosine

    def explained(self, state: Mapping[str, Tensor]) -> bool:
        return "told.off" in state and bool(state["told.off"] < EXPLAINED)

    def guess(self, state: dict[str, Tensor]) -> Guess:
        """The answer the attacker would give now."""
        notes = {"label_confidence": float(self.read.confidence.mean()),
                 "lanes_lost": float((~state["z"].isfinite().all(1)).float().mean())}
        if self.plan.lanes > 1:
            notes["lane_spread"] = float((state["z"] - state["z"][:1]).abs().max())
        if isinstance(self.room, TokenRoom):
            judged = state if "told.ids" in state else self.judge(state)
            lane, readings, beside = 0, judged["told.ids"][None], judged.get("told.beside")
            batch = self.room.told(readings, judged["told.y"][None], None if beside is None else beside[None])
        else:
            batch, readings = self.room.answer(*self.unpack(state["best"]))
            with torch.no_grad():
                updates = dense(self.replay(batch.x, batch.y))
            sizes = [distance({k: v[i] for k, v in updates.items()}, self.seen.update).cosine
                     for i in range(len(readings))]
            lane = min(range(len(sizes)), key=lambda i: (sizes[i] != sizes[i], sizes[i]))
        earlier = {k.removeprefix("earlier."): v[lane] for k, v in state.items() if k.startswith("earlier.")}
        return Guess(_lane(batch, lane), readings[lane], int(state["step"]), self.plan.ends, state, notes,
                     earlier=earlier)


def _told(seen: Observation) -> Statistics:
    """Statistics the threat grants. Without them the replay's own are taken, if the client normalises by any."""
    return cast(Statistics, seen.facts[Know.NORM_STATS]) if Know.NORM_STATS in seen.facts else {}


def _lane(batch: Batch, lane: int) -> Batch:
    return Batch(batch.x[lane], batch.y[lane], {name: value[lane] for name, value in batch.extra.items()})


def _there(seen: Observation, start: Guess | None) -> Tensor | None:
    """The places an earlier answer fills, where no lengths were granted."""
    if start is None or seen.vocabulary is None or Know.LENGTHS in seen.facts:
        return None
    return start.state.get("there", start.reading != NOTHING)
