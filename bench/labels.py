"""Labels of batches with skewed classes, read by every rule: share right in batches of 8 to 128 (or of the sizes
given), core seconds for the largest.

CIFAR-10 at 96 pixels meets ImageNet's EfficientNet-Lite0 in three ways: with a fresh last layer of 10 classes, and
with ImageNet's of 1,000, as classes that the images do not show and as those they show.

python bench/labels.py [photos] [cifar] [64 ...]
"""

import sys
import time

import torch
from common import PHOTOS, cifar

from gradleak import registry
from gradleak.attacks.parts.inference import Evolved, Lowest, Minimum
from gradleak.attacks.parts.labels import Counted
from gradleak.metrics.labels import label_accuracy
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.world.round import send

SIZES = (8, 16, 32, 64, 128)
TRIALS = 4
RULES = {"lowest row": Lowest(), "minimum row": Minimum(), "counted": Counted(), "evolved, published":
         Evolved(published=True), "evolved": Evolved()}


def tasks() -> dict[str, list[str]]:
    found = {"photos": [
        f"image(model={model}, data={PHOTOS}, train={train}, public=40)"
        for model, train in (("lenet", 0), ("convnet", 0), ("convnet", 100), ("resnet20", 0), ("resnet20", 100))]}
    if cifar():
        large = f"resized(subset({cifar()}, 800), size=96)"
        known = f"relabelled({large}, to=(404, 817, 94, 281, 351, 207, 32, 339, 510, 867), of=1000)"
        strange = f"relabelled({large}, to={tuple(range(90, 1000, 100))}, of=1000)"
        found["cifar"] = [f"image(model=efficientnet_lite0, data={data}, public=40)"
                          for data in (large, strange, known)]
    return found


def skewed(world, size: int, rng: Rng) -> list[int]:
    """Numbers of examples, with repeated labels: some classes are many times as frequent as others."""
    labels = world.secret(world.pool.tolist()).labels
    weights = (rng / "classes").uniform((int(labels.max()) + 1,), torch.zeros(1)) ** 3 + 0.02
    chosen = torch.multinomial(weights[labels], size, generator=(rng / "draw").torch())
    return world.pool[chosen].tolist()


def main() -> None:
    torch.set_num_threads(1)
    sizes = tuple(int(word) for word in sys.argv[1:] if word.isdigit()) or SIZES
    wanted = [word for word in sys.argv[1:] if not word.isdigit()] or list(tasks())
    for name, specs in tasks().items():
        for spec in specs if name in wanted else ():
            world = registry.build("task", parse(spec)).open(Rng(0))
            part = registry.build("client", parse("one_step(mode=eval)"))
            client, none = part.of(world.learner), registry.build("defense", parse("none"))
            shares = {rule: {size: [] for size in sizes} for rule in RULES}
            seconds = dict.fromkeys(RULES, 0.0)
            for size in sizes:
                for trial in range(TRIALS):
                    secret = world.secret(skewed(world, size, Rng(trial) / size))
                    sent = send(world, part, client, none, secret, Rng(0) / trial)
                    seen = threat("curious+public_data").observe(sent.release, client, none)
                    for rule, way in RULES.items():
                        began = time.process_time()
                        found = way.read(seen, Rng(1)).labels
                        seconds[rule] += (size == sizes[-1]) * (time.process_time() - began) / TRIALS
                        shares[rule][size] += label_accuracy()(found, secret.labels)
            print(f"{spec}\n  {'batch':20} " + " ".join(f"{size:>5}" for size in sizes) + f"   s at {sizes[-1]}")
            for rule, each in shares.items():
                print(f"  {rule:20} " + " ".join(f"{sum(v) / len(v):5.0%}" for v in each.values())
                      + f" {seconds[rule]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
