"""A generator of pictures, fitted to public ones as half of an autoencoder, and kept by digest."""

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.attacks.learned.examples import public
from gradleak.attacks.learned.fit import taught
from gradleak.attacks.learned.keep import Place, State, as_bytes
from gradleak.attacks.parts.optimisers import Adam, Value
from gradleak.attacks.parts.schedules import cosine
from gradleak.errors import Unsuited, UsageError
from gradleak.rng import Rng
from gradleak.types import Know, Observation

Shape = tuple[int, ...]


class Painter(nn.Module):
    """Latent numbers to pictures: a linear layer, then three times twice the size and a convolution."""

    def __init__(self, shape: Shape, latent: int, width: int) -> None:
        super().__init__()
        channels, *size = shape
        self.sizes = [tuple(-(-side // part) for side in size) for part in (8, 4, 2, 1)]
        widths = [4 * width, 2 * width, width, width]
        self.begin = nn.Linear(latent, widths[0] * self.sizes[0][0] * self.sizes[0][1])
        self.layers = nn.ModuleList([nn.Conv2d(into, out, 3, 1, 1) for into, out in pairwise(widths)])
        self.end = nn.Conv2d(width, channels, 3, 1, 1)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.begin(latents).reshape(len(latents), -1, *self.sizes[0])
        for layer, size in zip(self.layers, self.sizes[1:], strict=True):
            x = F.elu(layer(F.interpolate(F.elu(x), size=size, mode="nearest")))
        return torch.sigmoid(self.end(x))


class Viewer(nn.Module):
    """Pictures to latent numbers: three strided convolutions and a linear layer."""

    def __init__(self, shape: Shape, latent: int, width: int) -> None:
        super().__init__()
        widths = [shape[0], width, 2 * width, 4 * width]
        parts: list[nn.Module] = []
        for into, out in pairwise(widths):
            parts += [nn.Conv2d(into, out, 4, 2, 1), nn.ELU()]
        self.layers = nn.Sequential(*parts, nn.Flatten())
        with torch.no_grad():
            many = self.layers(torch.zeros(1, *shape)).shape[1]
        self.end = nn.Linear(many, latent)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layers(2 * x - 1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Generator:
    """A painter with its weights, and a first guess at the latents of a picture."""

    painter: nn.Module
    weights: Mapping[str, Tensor]
    latent: int
    viewer: nn.Module | None = None

    def paint(self, latents: Tensor, moved: Tensor | None = None) -> Tensor:
        """Pictures; `moved` is added to the weights, all in a row."""
        weights = dict(self.weights)
        if moved is not None:
            weights = {name: weights[name] + part for name, part in _parts(moved, weights).items()}
        return functional_call(self.painter, weights, (latents,))  # type: ignore[no-any-return]

    def view(self, images: Tensor, steps: int = 100) -> Tensor:
        """Latents whose pictures come close to these."""
        with torch.no_grad():
            z = self.viewer(images) if self.viewer else torch.zeros(len(images), self.latent).to(images)
        optimiser = Adam()
        state = optimiser.begin(z)
        with torch.enable_grad():
            for step in range(steps):
                z, _, _, state = optimiser.step(z, state, lambda at: self._off(at, images), 0.05 * (1 - step / steps))
        return z

    def _off(self, latents: Tensor, images: Tensor) -> Value:
        latents = latents.detach().requires_grad_()
        off = (self.paint(latents) - images).square().flatten(1).sum(1)
        (slope,) = torch.autograd.grad(off.sum(), latents)
        return Value(off.detach(), off.detach(), slope)


@dataclass(frozen=True)
class Fit:
    """An autoencoder of the public images; or, with a path, the generator that `package.module:build` returns: a module
    with a number `latent`, from that many numbers to pictures in [0, 1]. That imports and runs the module."""

    latent: int = 256
    width: int = 24
    steps: int = 1500
    batch: int = 64
    rate: float = 2e-3
    path: str | None = None

    def __post_init__(self) -> None:
        if min(self.latent, self.width, self.steps, self.batch) < 1:
            raise UsageError(f"latent={self.latent}, width={self.width}, fit={self.steps}: each at least 1")

    @property
    def needs(self) -> frozenset[Know]:
        return frozenset() if self.path else frozenset({Know.PUBLIC_DATA})

    def taught(self, seen: Observation) -> Iterator[float]:
        """Fit, unless it is kept already; from time to time the share that is done."""
        place = self._place(seen)
        if self.path or place.finished() is not None:
            return
        images, module = _images(seen), self._module(seen.shape, place.rng)
        weights = dict(module.named_parameters())
        state: State = {}
        for state in taught(place, self.steps, lambda rng: _begin(weights),
                            lambda now, rng: self._advance(module, weights, dict(now), images, rng)):
            yield int(state["step"]) / self.steps
        place.keep({"z": state["z"]})

    def open(self, seen: Observation) -> Generator:
        """The fitted generator."""
        if self.path:
            painter = _brought(self.path)
            return Generator(painter, _still(painter), int(painter.latent))
        place = self._place(seen)
        kept = place.finished()
        if kept is None:
            for _ in self.taught(seen):
                pass
            kept = place.finished()
        if kept is None:
            raise Unsuited("the fitted generator could not be kept; set GRADLEAK_CACHE to a folder that can be written")
        module = self._module(seen.shape, Rng(0))
        module.load_state_dict(_parts(kept["z"][0], dict(module.named_parameters())))
        painter, viewer = module[1], module[0]
        return Generator(painter, _still(painter), self.latent, viewer.requires_grad_(False))

    def _module(self, shape: Shape, rng: Rng) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.number)
            return nn.Sequential(Viewer(shape, self.latent, self.width), Painter(shape, self.latent, self.width))

    def _place(self, seen: Observation) -> Place:
        found = hashlib.blake2b(repr((self, seen.shape)).encode(), digest_size=16)
        if not self.path:
            found.update(as_bytes(_images(seen)))
        return Place(found.hexdigest())

    def _advance(
        self, module: nn.Module, weights: Mapping[str, Tensor], state: dict[str, Tensor], images: Tensor, rng: Rng,
    ) -> dict[str, Tensor]:
        step = int(state.pop("step"))
        z = state.pop("z")
        chosen = torch.randint(len(images), (min(self.batch, len(images)),), generator=rng.torch())
        x = images[chosen.to(images.device)]

        def evaluate(at: Tensor) -> Value:
            flat = at.detach().requires_grad_()
            off = (functional_call(module, _parts(flat[0], weights), (x,)) - x).square().mean()
            (slope,) = torch.autograd.grad(off, flat)
            return Value(off.detach()[None], off.detach()[None], slope)

        z, _, _, inner = Adam().step(z, state, evaluate, cosine(self.rate, warm=0.02)(step, self.steps))
        return {"step": torch.tensor(step + 1), "z": z, **inner}


def _begin(weights: Mapping[str, Tensor]) -> State:
    z = torch.cat([value.detach().flatten() for value in weights.values()])[None]
    return {"step": torch.tensor(0), "z": z, **Adam().begin(z)}


def _parts(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers in a row as tensors of these names and shapes."""
    pieces = torch.split(flat, [value.numel() for value in like.values()])
    return {name: piece.reshape(value.shape) for (name, value), piece in zip(like.items(), pieces, strict=True)}


def _still(painter: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in painter.named_parameters()}


def _images(seen: Observation) -> Tensor:
    readings = public(seen).readings
    if not readings.is_floating_point():
        raise Unsuited("this attack paints images, and the data are text; use a text attack, such as lamp")
    return readings.to(next(iter(seen.params.values())))


def _brought(path: str) -> Any:
    where, _, name = path.partition(":")
    try:
        painter = getattr(importlib.import_module(where), name)()
        return painter.eval() if int(painter.latent) > 0 else painter
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise UsageError(f"generator={path!r}: {problem}; name an importable function as 'package.module:build' that "
                         "returns a module with a number `latent`") from None
