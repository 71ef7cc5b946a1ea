"""Pictures and their classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gradleak.errors import UsageError
from gradleak.metrics.image import blind
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Know, Public, Secret
from gradleak.world.data import Data, Images, Photos
from gradleak.world.learner import Learner
from gradleak.world.models import LeNet, Model
from gradleak.world.public import marked, refuse_overlap, set_apart
from gradleak.world.task import World, accuracy, hard_half, train


@dataclass(frozen=True)
class Pictures:
    """Private pictures by their numbers."""

    images: Images

    def __call__(self, ids: Sequence[int]) -> Secret:
        x, y = self.images.x[list(ids)], self.images.y[list(ids)]
        return Secret(x, y, tuple(ids), Batch(x, y))


def flat(secret: Secret) -> Tensor:
    """The best flat picture of each."""
    return blind(secret.readings)


@register("task", "image")
@dataclass(frozen=True)
class ImageTask:
    """Image classification. `train` SGD steps on half the data come first; batches are then drawn from the other half.

    draw=loss takes batches from the half of the pool with the highest loss, where updates say most. `public` are
    examples the attacker may hold too, if the threat grants public_data: other data (public=npz('other.npz')), or so
    many of these, set apart first (public=5000).
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "mse", "ssim", "lpips", "label_accuracy")

    model: Model = field(default_factory=LeNet)
    data: Data = field(default_factory=Photos)
    train: int = 0
    rate: float = 0.05
    draw: Literal["random", "loss"] = "random"
    public: Data | int | None = None

    @property
    def grants(self) -> frozenset[Know]:
        public = set() if self.public is None else {Know.PUBLIC_DATA}
        return frozenset({Know.LABELS, Know.NORM_STATS} | public)

    def open(self, rng: Rng) -> World:
        images = self.data.load()
        shape, classes = tuple(images.x.shape[1:]), len(images.classes)
        if classes < 2:
            raise UsageError(f"{self.data!r} has one class only: a classifier needs two or more")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((rng / "model").number)
            module = self.model.build(shape, classes)
        check_output(module, self.model, shape, classes)
        take, right = Pictures(images), None
        pool, public = self._apart(images, rng / "public")
        if self.train:
            order = pool[(rng / "split").permutation(len(pool))]
            seen, pool = order[: len(order) // 2], order[len(order) // 2 :]
            optimiser = torch.optim.SGD(module.parameters(), lr=self.rate, momentum=0.9, weight_decay=5e-4)
            train(module, take, seen, self.train, optimiser, 64, rng / "train")
            right = accuracy(module, take, pool, 256)
        learner = Learner(module, shape, classes)
        if self.draw == "loss":
            pool = hard_half(learner, take, pool, 256)
        return World(learner, pool, right, take, flat, public=public)

    def _apart(self, images: Images, rng: Rng) -> tuple[Tensor, Public | None]:
        """The private examples' numbers, and the public examples."""
        if self.public is None:
            return torch.arange(len(images.x)), None
        marks = marked(images.x)
        if isinstance(self.public, int):
            chosen, pool = set_apart(marks, self.public, rng)
            return pool, Public(images.x[chosen], images.y[chosen])
        other = self.public.load()
        if other.x.shape[1:] != images.x.shape[1:]:
            raise UsageError(f"public={self.public!r} has images of {_sides(other.x)}, the private ones are of "
                             f"{_sides(images.x)}; resize them")
        if len(other.classes) != len(images.classes):
            raise UsageError(f"public={self.public!r} has {len(other.classes)} classes, the private data "
                             f"{len(images.classes)}; use data of the same classes")
        refuse_overlap(marked(other.x), marks, f"public={self.public!r}")
        return torch.arange(len(images.x)), Public(other.x, other.y)


def _sides(x: Tensor) -> str:
    return " x ".join(map(str, x.shape[1:]))


def check_output(module: nn.Module, model: object, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model that does not map a batch of images to a number a class."""
    try:
        with torch.no_grad():
            out = module.eval()(torch.zeros(2, *shape))
    except (RuntimeError, TypeError, ValueError) as problem:
        raise UsageError(f"model {model!r} does not take images of shape {shape}: {str(problem).splitlines()[0]}; "
                         "change the data's size or the model") from None
    if not isinstance(out, Tensor) or tuple(out.shape) != (2, classes):
        found = tuple(out.shape[1:]) if isinstance(out, Tensor) else type(out).__name__
        raise UsageError(f"model {model!r} gives {found} outputs an image, but the data has {classes} classes; "
                         f"make its last layer {classes} wide")
