"""Where private examples come from. Each is a description; `load` reads it."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.registry import kind_of, register
from gradleak.rng import Rng

PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "ihc.png",
            "retina.jpg", "motorcycle_left.png", "camera.png", "coins.png")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"}


@dataclass(frozen=True)
class Images:
    """Pixels in [0, 1] (N x C x H x W) with class numbers and their names."""

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]


class Data(Protocol):
    """A set of labelled private examples."""

    def load(self) -> Images: ...


kind_of(Data, "data")


def _resized(picture: Any, size: int) -> np.ndarray:
    """Centre square, resized, as floats (H x W x 3)."""
    from PIL import Image

    picture = picture.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BOX)
    return np.asarray(square, dtype=np.float32) / 255


def _stack(images: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def _checked_size(size: int, name: str) -> None:
    if not 4 <= size <= 1024:
        raise UsageError(f"{name}(size={size}): an image side is between 4 and 1024 pixels")


MOST_CROPS = 100_000


@register("data", "photos")
@dataclass(frozen=True)
class Photos:
    """Distinct crops of ten photographs bundled with scikit-image; the class is the photograph.

    Crops cover a quarter to all of the short side. Nearly flat ones (sky, background) are left out: anyone could
    guess them without an update.
    """

    size: int = 32
    count: int = 640

    def __post_init__(self) -> None:
        _checked_size(self.size, "photos")
        if not len(PICTURES) <= self.count <= MOST_CROPS:
            raise UsageError(f"photos(count={self.count}): from {len(PICTURES)}, one crop a photograph, to "
                             f"{MOST_CROPS}")

    def load(self) -> Images:
        import skimage
        from PIL import Image

        folder = Path(skimage.__file__).parent / "data"
        each = -(-self.count // len(PICTURES))
        found: list[np.ndarray] = []
        for name in PICTURES:
            with Image.open(folder / name) as picture:
                found += self._crops(picture.convert("RGB"), each, (Rng(0) / "photos" / name).numpy())
        labels = torch.arange(len(PICTURES)).repeat_interleave(each)
        order = torch.arange(len(found)).reshape(len(PICTURES), each).T.reshape(-1)[: self.count]
        return Images(_stack(found)[order], labels[order], tuple(Path(name).stem for name in PICTURES))

    def _crops(self, picture: Any, wanted: int, rng: np.random.Generator) -> list[np.ndarray]:
        crops: list[np.ndarray] = []
        contrast = 0.1
        while len(crops) < wanted:
            side = int(min(picture.size) * rng.uniform(0.25, 1.0))
            left, top = (int(rng.integers(0, edge - side + 1)) for edge in picture.size)
            crop = _resized(picture.crop((left, top, left + side, top + side)), self.size)
            if crop.std(axis=(0, 1)).mean() > contrast:
                crops.append(crop)
            contrast *= 0.999  # a picture of little contrast, seen small, must not be searched for ever
        return crops


@register("data", "digits")
@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8 x 8 pixels, from scikit-learn."""

    def load(self) -> Images:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise UsageError("digits needs scikit-learn: pip install 'gradleak[digits]'") from None
        pixels, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(pixels.astype(np.float32) / 16).reshape(-1, 1, 8, 8)
        return Images(x, torch.from_numpy(labels).long(), tuple(map(str, range(10))))


@register("data", "folder")
@dataclass(frozen=True)
class Folder:
    """A folder of class folders with images, each cropped to its centre square and resized."""

    path: str
    size: int = 32

    def __post_init__(self) -> None:
        _checked_size(self.size, "folder")

    def load(self) -> Images:
        from PIL import Image, UnidentifiedImageError

        root = Path(self.path)
        if not root.is_dir():
            raise UsageError(f"folder({self.path!r}): no such folder; give the path of a folder of class folders")
        kinds = sorted(child for child in root.iterdir() if child.is_dir())
        files = [(f, label) for label, kind in enumerate(kinds) for f in sorted(kind.iterdir())
                 if f.suffix.lower() in SUFFIXES]
        if not files:
            raise UsageError(f"folder({self.path!r}): no images found; put them into class folders such as "
                             f"{self.path}/cats/1.png")
        images = []
        for file, _ in files:
            try:
                with Image.open(file) as picture:
                    images.append(_resized(picture, self.size))
            except (UnidentifiedImageError, OSError) as problem:
                raise UsageError(f"{file}: not a readable image ({problem}); remove or replace it") from None
        return Images(_stack(images), torch.tensor([label for _, label in files]), tuple(k.name for k in kinds))


@register("data", "npz")
@dataclass(frozen=True)
class Npz:
    """Arrays from an .npz: images (N x H x W x C or N x C x H x W, bytes or floats in [0, 1]) and class numbers."""

    path: str
    x: str = "x"
    y: str = "y"

    def load(self) -> Images:
        if not Path(self.path).is_file():
            raise UsageError(f"npz({self.path!r}): no such file")
        try:
            with np.load(Path(self.path).open("rb"), allow_pickle=False) as archive:
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("one array, not an archive of several")
                missing = [key for key in (self.x, self.y) if key not in archive]
                if missing:
                    raise UsageError(f"npz({self.path!r}): no array {missing[0]!r}; it holds {', '.join(archive)}: "
                                     "name them with x= and y=")
                pixels, labels = archive[self.x], archive[self.y]
        except (ValueError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as problem:
            raise UsageError(f"npz({self.path!r}): {problem}; save plain arrays with numpy.savez") from None
        return self._checked(pixels, labels.reshape(-1))

    def _checked(self, pixels: np.ndarray, labels: np.ndarray) -> Images:
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        if pixels.ndim != 4 or len(pixels) != len(labels) or not len(labels):
            raise UsageError(f"npz({self.path!r}): {self.x} has shape {pixels.shape} for {len(labels)} labels; "
                             "expected N x H x W x C or N x C x H x W with N labels")
        if pixels.shape[-1] in (1, 3) and pixels.shape[1] not in (1, 3):
            pixels = pixels.transpose(0, 3, 1, 2)
        x = torch.from_numpy(np.ascontiguousarray(pixels)).float() / (255 if pixels.dtype == np.uint8 else 1)
        if not torch.isfinite(x).all() or x.min() < 0 or x.max() > 1:
            raise UsageError(f"npz({self.path!r}): floats must lie in [0, 1]; scale {self.x} or store bytes")
        if labels.dtype.kind not in "iu" or labels.min() < 0:
            raise UsageError(f"npz({self.path!r}): {self.y} must hold class numbers from 0")
        return Images(x, torch.from_numpy(labels.astype(np.int64)), tuple(map(str, range(int(labels.max()) + 1))))


@register("data", "subset")
@dataclass(frozen=True)
class Subset:
    """So many examples of other data, drawn once and for all: a smaller count is a part of a larger one's."""

    data: Data
    count: int

    def load(self) -> Images:
        images = self.data.load()
        if not 0 < self.count <= len(images.x):
            raise UsageError(f"subset(count={self.count}): {self.data!r} has {len(images.x)} examples; choose from 1 "
                             "to as many")
        rows = (Rng(0) / "subset").permutation(len(images.x))[: self.count]
        return Images(images.x[rows], images.y[rows], images.classes)


@register("data", "halves")
@dataclass(frozen=True)
class Halves:
    """`count` examples of other data: the given `share` from the first half of its classes, the rest from the second.

    share=1 on the private side and less on the public side is a shift between the two.
    """

    data: Data
    share: float
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.count < 1:
            raise UsageError(f"{self!r}: the share lies between 0 and 1, the count is at least 1")

    def load(self) -> Images:
        images = self.data.load()
        first = images.y < len(images.classes) // 2
        wanted = round(self.share * self.count)
        parts = []
        for half, many in ((first, wanted), (~first, self.count - wanted)):
            there = half.nonzero().flatten()
            if many > len(there):
                raise UsageError(f"{self!r}: one half of the classes has {len(there)} examples, not {many}; "
                                 "use a smaller count")
            parts.append(there[(Rng(0) / "halves").permutation(len(there))[:many]])
        rows = torch.cat(parts)
        return Images(images.x[rows], images.y[rows], images.classes)


@register("data", "resized")
@dataclass(frozen=True)
class Resized:
    """Other data at another size of image, smoothly interpolated."""

    data: Data
    size: int

    def __post_init__(self) -> None:
        _checked_size(self.size, "resized")

    def load(self) -> Images:
        images = self.data.load()
        x = torch.nn.functional.interpolate(images.x, size=self.size, mode="bicubic", antialias=True).clamp(0, 1)
        return Images(x, images.y, images.classes)


@register("data", "relabelled")
@dataclass(frozen=True)
class Relabelled:
    """Other data whose classes are some of a model's own: `relabelled(folder('cats_and_cups'), to=(281, 968), of=1000)`
    says which of ImageNet's each is."""

    data: Data
    to: tuple[int, ...]
    of: int

    def load(self) -> Images:
        images = self.data.load()
        if len(self.to) != len(images.classes) or not all(0 <= number < self.of for number in self.to):
            raise UsageError(f"relabelled: {len(self.to)} class numbers for the {len(images.classes)} classes of "
                             f"{self.data!r}; give one a class, from 0 to {self.of - 1}")
        names = dict(zip(self.to, images.classes, strict=True))
        return Images(images.x, torch.tensor(self.to)[images.y], tuple(names.get(n, str(n)) for n in range(self.of)))
