"""Where the search moves: unknowns, and how they become data. A space is opened on one observation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from gradleak.attacks.parts.spectrum import Spectrum
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Observation

Begin = Literal["normal", "uniform", "grey"]


class Room(Protocol):
    """A space opened for batches of n examples. Candidates are R x n x ..., unknowns R x D."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one candidate batch."""
        ...

    @property
    def unknowns(self) -> int:
        """Of one candidate batch: how many numbers the search moves."""
        ...

    @property
    def tokens(self) -> int:
        """How many tokens a candidate batch holds; 0 if it is not made of tokens."""
        ...

    @property
    def beside(self) -> int:
        """How many unknowns a candidate has beside its data, each in [0, 1]."""
        ...

    def begin(self, lanes: int, rng: Rng) -> Tensor:
        """Data and what is beside them."""
        ...

    def decode(self, unknowns: Tensor) -> Tensor: ...

    def encode(self, data: Tensor) -> Tensor: ...

    def settle(self, data: Tensor) -> Tensor | None:
        """Data brought back to where they may be; none if anything goes."""
        ...

    def extra(self, lanes: int, beside: Tensor | None = None) -> dict[str, Tensor]:
        """What the model needs beside the data, stacked like them."""
        ...

    def kept(self, extra: Mapping[str, Tensor]) -> Tensor | None:
        """The unknowns beside the data of a batch with these extras, if they say so much."""
        ...

    def answer(self, data: Tensor, labels: Tensor) -> tuple[Batch, Tensor]:
        """Stacked candidates as they would be told: replayable, and readable."""
        ...


class Space(Protocol):
    """A kind of unknowns."""

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> Room:
        """`there` says of sentences in which places (n x L) tokens are taken to be."""
        ...


@dataclass(frozen=True)
class Pixels:
    """The pixels themselves, kept in [0, 1] where `box`."""

    box: bool = True
    begin: Begin = "normal"

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> "PixelRoom":
        return PixelRoom(seen, count, self.box, self.begin)


@dataclass(frozen=True)
class Smooth:
    """Pixels whose frequencies are weighed as those of pictures are, by (1 + frequency)^-power: the search finds large
    shapes first and needs far fewer steps."""

    power: float = 1.0
    box: bool = False
    begin: Begin = "uniform"

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> "PixelRoom":
        return PixelRoom(seen, count, self.box, self.begin, lambda shape, like: Fourier(self.power))


@dataclass(frozen=True)
class Waves:
    """Waves of light and colour, weighed by (1 + frequency^2)^(-power/2) and by colour, less than they differ in
    pictures: what to move in once large shapes are there and fine ones are wanted."""

    power: float = 0.5
    colours: tuple[float, ...] = (1.0, 0.5, 0.4)
    begin: Begin = "uniform"

    def open(self, seen: Observation, count: int, there: Tensor | None = None) -> "PixelRoom":
        return PixelRoom(seen, count, False, self.begin,
                         lambda shape, like: Spectrum.of(shape, like, 1.0, self.power, self.colours))


class Coding(Protocol):
    """Pictures, as they differ from grey, as other numbers."""

    def picture(self, white: Tensor) -> Tensor: ...

    def white(self, picture: Tensor) -> Tensor:
        """The inverse of `picture`."""
        ...


@dataclass(frozen=True)
class Fourier:
    """Frequencies, weighed."""

    power: float

    def picture(self, white: Tensor) -> Tensor:
        return self._scaled(white, 1.0)

    def white(self, picture: Tensor) -> Tensor:
        return self._scaled(picture, -1.0)

    def _scaled(self, x: Tensor, sign: float) -> Tensor:
        scaled: Tensor = torch.fft.irfft2(torch.fft.rfft2(x) * self._weights(x) ** sign, s=x.shape[-2:])
        return scaled

    def _weights(self, like: Tensor) -> Tensor:
        high, wide = like.shape[-2:]
        down = torch.fft.fftfreq(high, device=like.device, dtype=like.dtype)[:, None] * high
        across = torch.fft.rfftfreq(wide, device=like.device, dtype=like.dtype)[None] * wide
        weights: Tensor = (1 + (down.square() + across.square()).sqrt()) ** -self.power
        return weights / weights.square().mean().sqrt()


class PixelRoom:
    """Images, as pixels or coded. `told` is how many numbers the update says of them."""

    tokens = 0
    beside = 0

    def __init__(
        self, seen: Observation, count: int, box: bool, begin: Begin,
        coding: Callable[[tuple[int, ...], Tensor], Coding] | None = None,
    ) -> None:
        if seen.vocabulary is not None:
            raise Unsuited("this attack reads images, and the data are text; use a text attack, such as lamp")
        self.shape = (count, *seen.shape)
        self.unknowns = math.prod(self.shape)
        self.like = next(iter(seen.params.values())).detach()
        self.told = max(1, sum(int(value.count_nonzero()) for value in seen.update.values()))
        self.box, self.start = box, begin
        self.coding = coding(seen.shape, self.like) if coding else None

    def begin(self, lanes: int, rng: Rng) -> Tensor:
        shape = (lanes, torch.Size(self.shape).numel())
        if self.start == "uniform":
            return rng.uniform(shape, self.like)
        noise = rng.normal(shape, self.like)
        return noise if self.start == "normal" else 0.5 + 0.01 * noise

    def decode(self, unknowns: Tensor) -> Tensor:
        x = unknowns.reshape(-1, *self.shape)
        return self.coding.picture(x - 0.5) + 0.5 if self.coding else x

    def encode(self, data: Tensor) -> Tensor:
        return (self.coding.white(data - 0.5) + 0.5 if self.coding else data).flatten(1)

    def settle(self, data: Tensor) -> Tensor | None:
        return data.clamp(0, 1) if self.box else None

    def extra(self, lanes: int, beside: Tensor | None = None) -> dict[str, Tensor]:
        return {}

    def kept(self, extra: Mapping[str, Tensor]) -> Tensor | None:
        return None

    def answer(self, data: Tensor, labels: Tensor) -> tuple[Batch, Tensor]:
        return Batch(data, labels), data.clamp(0, 1)
