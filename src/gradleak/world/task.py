"""What is being trained: a model on private data, and the audited batches drawn from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Secret
from gradleak.world.clients import Participation
from gradleak.world.data import Data, Images, Photos
from gradleak.world.learner import Learner
from gradleak.world.models import LeNet, Model


@dataclass(frozen=True)
class World:
    """A task brought to life: the shared model and the pool that batches are drawn from."""

    learner: Learner
    images: Images
    pool: Tensor
    accuracy: float | None

    def draw(self, count: int, trial: int, participation: Participation, rng: Rng) -> Secret:
        """The examples of one trial, in the order the client walks through them; the same for every defense."""
        if count > len(self.pool):
            raise UsageError(f"batch = {count} is larger than the data ({len(self.pool)} examples); "
                             "use a smaller batch or more data")
        order = self.pool[(rng / "draw" / count).permutation(len(self.pool))]
        first = (trial * count) % len(order)
        chosen = torch.cat([order, order])[first : first + count]
        return self.secret(chosen[participation.order(count, rng / "order" / count / trial)].tolist())

    def secret(self, ids: Sequence[int]) -> Secret:
        """Examples by their numbers, in that order."""
        x, y = self.images.x[list(ids)], self.images.y[list(ids)]
        return Secret(x, y, tuple(ids), Batch(x, y))


@register("task", "image")
@dataclass(frozen=True)
class ImageTask:
    """Image classification. `train` SGD steps on half the data come first; batches are then drawn from the other half.

    draw=loss takes batches from the half of the pool with the highest loss, where updates say most.
    """

    model: Model = field(default_factory=LeNet)
    data: Data = field(default_factory=Photos)
    train: int = 0
    rate: float = 0.05
    draw: Literal["random", "loss"] = "random"

    def open(self, rng: Rng) -> World:
        images = self.data.load()
        shape, classes = tuple(images.x.shape[1:]), len(images.classes)
        if classes < 2:
            raise UsageError(f"{self.data!r} has one class only: a classifier needs two or more")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((rng / "model").number)
            module = self.model.build(shape, classes)
        check_output(module, self.model, shape, classes)
        pool = torch.arange(len(images.x))
        accuracy = None
        if self.train:
            order = (rng / "split").permutation(len(images.x))
            half = len(order) // 2
            _train(module, images, order[:half], self.train, self.rate, rng / "train")
            pool = order[half:]
            accuracy = _accuracy(module, images, pool)
        learner = Learner(module, shape, classes)
        if self.draw == "loss":
            pool = _hard_half(learner, images, pool)
        return World(learner, images, pool, accuracy)


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


def _train(module: nn.Module, images: Images, rows: Tensor, steps: int, rate: float, rng: Rng) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    module.train()
    for step in range(steps):
        chosen = rows[torch.randint(len(rows), (min(64, len(rows)),), generator=(rng / step).torch())]
        optimiser.zero_grad()
        F.cross_entropy(module(images.x[chosen]), images.y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@torch.no_grad()
def _accuracy(module: nn.Module, images: Images, rows: Tensor) -> float:
    module.eval()
    right = [(module(images.x[part]).argmax(1) == images.y[part]).float() for part in torch.split(rows, 256)]
    return float(torch.cat(right).mean())


@torch.no_grad()
def _hard_half(learner: Learner, images: Images, pool: Tensor) -> Tensor:
    losses = [F.cross_entropy(learner.logits(learner.params, images.x[part], "eval"), images.y[part], reduction="none")
              for part in torch.split(pool, 256)]
    return pool[torch.cat(losses).argsort(descending=True)][: max(1, len(pool) // 2)]
