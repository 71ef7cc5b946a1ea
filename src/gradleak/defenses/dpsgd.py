"""Differentially private SGD: each example's gradient clipped by itself, then noise on the sum."""

from dataclasses import dataclass

from gradleak.calculus import clipped_mean
from gradleak.defenses import accounting
from gradleak.defenses.accounting import Accountant, Privacy
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Params, Update


@register("defense", "dpsgd")
@dataclass(frozen=True)
class DpSgd:
    """Each example's gradient scaled to a length of at most `clip`; to the sum, noise of `multiplier` times `clip`.

    Instead of a multiplier give the `epsilon` wanted. Either way it holds for `steps` steps that each sample the share
    `rate` of the data, at `delta`; without them it is that of this one update.
    """

    clip: float
    multiplier: float | None = None
    epsilon: float | None = None
    steps: int = 1
    rate: float = 1.0
    delta: float = 1e-5
    accountant: Accountant = "prv"

    per_example = True
    """The client is asked for each example alone: it must take one step."""

    def __post_init__(self) -> None:
        if (self.multiplier is None) == (self.epsilon is None):
            raise UsageError(f"{self!r}: give exactly one of multiplier= and epsilon=, as in "
                             "dpsgd(clip=1.0, epsilon=8, steps=1000, rate=0.01)")
        for name in ("clip", "epsilon", "steps", "rate", "delta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"dpsgd({name}={value}): must be above 0")
        if self.rate > 1 or self.delta >= 1 or (self.multiplier or 0) < 0:
            raise UsageError(f"{self!r}: rate is a share of the data, delta a probability, multiplier 0 or more")

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in units of the bound."""
        if self.epsilon is None:
            return self.multiplier or 0.0
        return accounting.multiplier(self.epsilon, self.rate, self.steps, self.delta, self.accountant)

    @property
    def random(self) -> bool:
        return self.epsilon is not None or bool(self.multiplier)

    @property
    def privacy(self) -> Privacy:
        found = accounting.epsilon(self.noise, self.rate, self.steps, self.delta, self.accountant)
        return Privacy(found, self.delta, self.steps, self.rate, self.accountant)

    @property
    def meaning(self) -> str:
        return (f"each example's gradient scaled to a length of at most {self.clip:g}, Gaussian noise of standard "
                f"deviation {self.noise * self.clip:.3g} ({self.noise:.3g} times that) on their sum; {self.privacy}")

    def protect(self, client: Client) -> Client:
        """What the client drops must be among the batch's extras: an example alone has no stream of its own."""

        def private(params: Params, batch: Batch, rng: Rng | None) -> Update:
            mean = clipped_mean(client, params, batch, self.clip)
            if rng is None:
                return mean
            scale, draws = self.noise * self.clip / len(batch.x), rng / "defense"
            return {k: v + scale * (draws / k).normal(v.shape, v) for k, v in mean.items()}

        return private

    def clean(self, update: Update) -> Update:
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        """Clip the candidates' gradients alike; the noise is unbiased and stays."""
        return lambda params, batch, rng: clipped_mean(client, params, batch, self.clip)
