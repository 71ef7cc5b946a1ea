"""Minimisers over R independent lanes at once (R x D). Their state is plain tensors, so that a run can go on later."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Value(NamedTuple):
    """At a point: what is minimised and its gradient, and the matching part alone. Per lane."""

    total: Tensor
    match: Tensor
    gradient: Tensor


Evaluate = Callable[[Tensor], Value]
State = dict[str, Tensor]


class Optimiser(Protocol):
    """`step` returns the next point, the value where it was judged (with that point), and the next state."""

    @property
    def per_step(self) -> float:
        """About how many evaluations a step takes."""
        ...

    def begin(self, z: Tensor) -> State: ...

    def step(self, z: Tensor, state: State, evaluate: Evaluate, rate: float) -> tuple[Tensor, Tensor, Value, State]: ...


@dataclass(frozen=True)
class Adam:
    """As in torch.optim.Adam; with a decay, as in torch.optim.AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.0
    per_step: float = 1.0

    def begin(self, z: Tensor) -> State:
        return {"m": torch.zeros_like(z), "v": torch.zeros_like(z), "t": torch.zeros(())}

    def step(self, z: Tensor, state: State, evaluate: Evaluate, rate: float) -> tuple[Tensor, Tensor, Value, State]:
        value = evaluate(z)
        (b1, b2), t = self.betas, int(state["t"]) + 1
        m = state["m"].lerp(value.gradient, 1 - b1)
        v = (state["v"] * b2).addcmul_(value.gradient, value.gradient, value=1 - b2)
        scale = (v / (1 - b2**t)).sqrt_().add_(self.epsilon)
        moved = torch.addcdiv(z * (1 - rate * self.decay), m, scale, value=-rate / (1 - b1**t))
        return moved, z, value, {"m": m, "v": v, "t": torch.tensor(float(t))}


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS, every lane with its own memory and its own backtracking line search."""

    memory: int = 20
    most: int | None = None
    """Numbers remembered at most by a lane: of large pictures fewer steps than `memory`."""
    tries: int = 12
    per_step: float = 1.3

    def begin(self, z: Tensor) -> State:
        kept = self.memory if self.most is None else max(1, min(self.memory, self.most // (2 * z.shape[1])))
        shape = (kept, *z.shape)
        return {"s": z.new_zeros(shape), "y": z.new_zeros(shape), "rho": z.new_zeros(shape[:2]),
                "total": z.new_zeros(0), "match": z.new_zeros(0), "g": z.new_zeros(0),
                "still": torch.zeros(len(z), dtype=torch.bool, device=z.device)}

    def step(self, z: Tensor, state: State, evaluate: Evaluate, rate: float) -> tuple[Tensor, Tensor, Value, State]:
        here = Value(state["total"], state["match"], state["g"]) if len(state["g"]) else evaluate(z)
        if "still" in state and bool(state["still"].all()):
            # Nothing is lower straight downhill either: it would be searched again in vain.
            return z, z, here, state
        direction = self._direction(here.gradient, state)
        slope = (direction * here.gradient).sum(1)
        uphill = slope >= 0
        direction = torch.where(uphill[:, None], -here.gradient, direction)
        slope = torch.where(uphill, -here.gradient.square().sum(1), slope)
        fresh = state["rho"].abs().sum(0) == 0
        first = rate / here.gradient.abs().sum(1).clamp_min(1e-12)
        reach = torch.where(fresh | uphill, first.clamp_max(rate), torch.full_like(first, rate))
        point, there, found = self._search(z, here, direction, slope, reach, evaluate)
        after = self._remember(state, point - z, here, there, found)
        return point, point, there, {**after, "still": ~found & (fresh | uphill)}

    def _direction(self, gradient: Tensor, state: State) -> Tensor:
        """The two-loop recursion; a pair with rho 0 is empty and changes nothing."""
        q, rho = -gradient, state["rho"]
        used = [i for i in range(len(rho)) if bool(rho[i].any())]
        alphas = {}
        for i in reversed(used):
            alphas[i] = rho[i] * (state["s"][i] * q).sum(1)
            q = q - alphas[i][:, None] * state["y"][i]
        if used:
            newest = used[-1]
            sy, yy = (state["s"][newest] * state["y"][newest]).sum(1), state["y"][newest].square().sum(1)
            q = q * torch.where(rho[newest] > 0, sy / yy.clamp_min(1e-30), torch.ones_like(sy))[:, None]
        for i in used:
            beta = rho[i] * (state["y"][i] * q).sum(1)
            q = q + (alphas[i] - beta)[:, None] * state["s"][i]
        return q

    def _search(
        self, z: Tensor, here: Value, direction: Tensor, slope: Tensor, reach: Tensor, evaluate: Evaluate,
    ) -> tuple[Tensor, Value, Tensor]:
        """Shorten each lane's step until it descends enough; a lane that never does stays where it is."""
        point, best = z, here
        found = torch.zeros_like(slope, dtype=torch.bool)
        for _ in range(self.tries):
            tried = torch.where(found[:, None], point, z + reach[:, None] * direction)
            value = evaluate(tried)
            new = ~found & (value.total <= here.total + 1e-4 * reach * slope) & value.gradient.isfinite().all(1)
            point = torch.where(new[:, None], tried, point)
            best = Value(torch.where(new, value.total, best.total), torch.where(new, value.match, best.match),
                         torch.where(new[:, None], value.gradient, best.gradient))
            found = found | new
            if bool(found.all()):
                break
            guess = -slope * reach.square() / (2 * (value.total - here.total - slope * reach))
            nearer = torch.where(guess.isfinite(), guess.clamp(0.1 * reach, 0.5 * reach), 0.1 * reach)
            reach = nearer.to(reach)  # totals may be more precise than points
        return point, best, found

    def _remember(self, state: State, s: Tensor, here: Value, there: Value, found: Tensor) -> State:
        y = there.gradient - here.gradient
        sy = (s * y).sum(1)
        keep = found & (sy > 1e-10 * s.norm(dim=1) * y.norm(dim=1))
        rho = torch.where(keep, 1 / sy, torch.zeros_like(sy))
        old = torch.where(found, state["rho"], torch.zeros_like(state["rho"]))
        return {"s": torch.cat([state["s"][1:], s[None]]), "y": torch.cat([state["y"][1:], y[None]]),
                "rho": torch.cat([old[1:], rho[None]]),
                "total": there.total, "match": there.match, "g": there.gradient}
