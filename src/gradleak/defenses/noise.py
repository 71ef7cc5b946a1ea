"""Gaussian noise on every entry, in four meanings that papers mix up."""

from dataclasses import dataclass

from torch import Tensor

from gradleak.defenses.after import after
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Client, Update


@register("defense", "noise")
@dataclass(frozen=True)
class Noise:
    """Exactly one of: sigma (absolute), relative (times the layer's rms), peak (times the layer's largest entry), unit
    (absolute, after every layer was divided by its length)."""

    sigma: float | None = None
    relative: float | None = None
    peak: float | None = None
    unit: float | None = None

    random = True

    def __post_init__(self) -> None:
        given = {k: v for k, v in vars(self).items() if v is not None}
        if len(given) != 1:
            raise UsageError(f"{self!r}: give exactly one of sigma= (absolute), relative= (to the layer's rms), "
                             "peak= (to the layer's maximum), unit= (after dividing each layer by its length)")
        for name, value in given.items():
            if value < 0:
                raise UsageError(f"noise({name}={value}): a noise scale cannot be negative; use 0 or more")

    @property
    def meaning(self) -> str:
        if self.sigma is not None:
            return f"Gaussian noise of absolute standard deviation {self.sigma:g}"
        if self.relative is not None:
            return f"Gaussian noise of {self.relative:g} times each layer's rms"
        if self.unit is not None:
            return f"each layer divided by its length, then Gaussian noise of standard deviation {self.unit:g}"
        return f"Gaussian noise of {self.peak:g} times each layer's largest entry"

    def _scale(self, layer: Tensor) -> Tensor | float:
        if self.sigma is not None:
            return self.sigma
        if self.relative is not None:
            return self.relative * layer.square().mean().sqrt()
        if self.unit is not None:
            return self.unit
        return (self.peak or 0.0) * layer.abs().max()

    def protect(self, client: Client) -> Client:
        def add(update: Update, rng: Rng | None) -> Update:
            update = self._scaled(update)
            if rng is None:
                return update
            return {k: v + self._scale(v) * (rng / k).normal(v.shape, v) for k, v in update.items()}

        return after(client, add)

    def _scaled(self, update: Update) -> Update:
        if self.unit is None:
            return update
        return {k: v / v.square().sum().clamp_min(1e-30).sqrt() for k, v in update.items()}

    def clean(self, update: Update) -> Update:
        """Nothing: a noisy update is unbiased, so matching it as it is gives the likeliest explanation. Shrinking it
        towards zero would only make present classes look absent."""
        return update

    def mimic(self, client: Client, update: Update) -> Client:
        if self.unit is None:
            return client
        return after(client, lambda sent, rng: self._scaled(sent))
