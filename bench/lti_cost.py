"""What learned inversion costs on lenet, CIFAR-10.

`step`: one minibatch of `lti` as published beside a plain loop (a gradient an example, torch.optim.Adam), interleaved.
`memory`: how large a hashed inverter is for victims of two sizes. `ratio`: how well it reads, hashed to fewer and fewer
features (`--plot FILE.png`).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import mean, median

import torch
from lti import DEFENSES, attacked, scenes
from torch import Tensor, nn

from gradleak import registry
from gradleak.attacks.learned.inverter import Training
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Batch, Observation


def trained(seen: Observation, spec: str) -> Training:
    return registry.build("attack", parse(spec)).images.fits.open(seen, Rng(0))  # type: ignore[no-any-return]


class Plain:
    """What a reader of the paper would write."""

    def __init__(self, training: Training, seen: Observation) -> None:
        self.seen, self.answers, sizes = seen, training.answers, [training.width, *training.answers.sizes]
        parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
        self.network = nn.Sequential(*parts[:-1], nn.Sigmoid())
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=1e-4)

    @torch.no_grad()
    def gradients(self, batch: Batch) -> Tensor:
        each = [self.seen.rehearse(Batch(batch.x[i], batch.y[i]), None) for i in range(len(batch.x))]
        return torch.stack([torch.cat([value.flatten() for value in update.values()]) for update in each])

    def step(self, numbers: Tensor) -> None:
        batch, target = self.answers.drawn(numbers, Rng(0))
        sent = self.gradients(batch)
        self.optimiser.zero_grad()
        nn.functional.mse_loss(self.network(sent), target.flatten(1)).backward()
        self.optimiser.step()


def seconds(work: Callable[[], object]) -> float:
    """Of this process: other work on the machine does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def step(options: argparse.Namespace) -> None:
    seen = next(scenes(options, "informed+public_data", "none"))[1]
    training = trained(seen, "lti(patience=200)")
    plain, state, numbers = Plain(training, seen), dict(training.begin(Rng(0))), torch.arange(256)
    batch, _ = training.answers.drawn(numbers, Rng(0))
    found: dict[str, list[float]] = {"gradients": [], "gradients, plain": [], "step": [], "step, plain": []}
    for turn in range(options.turns + 1):
        once = {"gradients": seconds(lambda: training._rehearsed(numbers, Rng(0))),
                "gradients, plain": seconds(lambda: plain.gradients(batch)),
                "step": seconds(lambda turn=turn: state.update(training.advance(state, Rng(turn)))),  # type: ignore[misc]
                "step, plain": seconds(lambda: plain.step(numbers))}
        for name, took in once.items():
            found[name] += [took] if turn else []
    took = {name: median(each) for name, each in found.items()}
    print(f"a minibatch of 256, processor seconds, median of {options.turns}: "
          + ", ".join(f"{name} {value:.2f}" for name, value in took.items())
          + f"; of the plain loop's time {took['gradients'] / took['gradients, plain']:.2f} for the gradients, "
          f"{took['step'] / took['step, plain']:.2f} for all of it", flush=True)


def memory(options: argparse.Namespace) -> None:
    for model in ("lenet(channels=12)", "lenet(channels=50)"):
        seen = next(scenes(argparse.Namespace(**{**vars(options), "model": model}), "informed+public_data", "none"))[1]
        state = trained(seen, "lti(hidden=[300, 300], features=1500)").begin(Rng(0))
        print(f"{model}: {sum(v.numel() for v in seen.params.values()):,} weights, inverter with its optimiser "
              f"{sum(v.numel() * v.element_size() for v in state.values()) / 2**20:.1f} MiB", flush=True)


def ratio(options: argparse.Namespace) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in options.defenses:
        for features in options.features:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["GRADLEAK_CACHE"] = folder
                found = list(attacked(options, f"ridge_inverter(features={features})", DEFENSES[name]))
            lines.setdefault(name, []).append((min(1.0, features / 15_826), mean(each.psnr for each in found)))
            print(f"{name}, {options.aux} public images, {features} of 15826 features, {len(found)} images: PSNR "
                  f"{lines[name][-1][1]:.2f} dB", flush=True)
    if options.plot:
        _draw(lines, options.plot)


def _draw(lines: dict[str, list[tuple[float, float]]], to: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3), layout="constrained")
    for name, points in lines.items():
        axis.plot(*zip(*points, strict=True), "o-", label=name)
    axis.set(xlabel="features kept, of the update's entries", ylabel="PSNR, dB", xscale="log")
    axis.legend(fontsize=8)
    figure.savefig(to)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("part", choices=["step", "memory", "ratio"])
    given.add_argument("--turns", type=int, default=3)
    given.add_argument("--defenses", nargs="+", default=["none", "sign"])
    given.add_argument("--features", type=int, nargs="+", default=[150, 500, 1500, 5000, 15_826])
    given.add_argument("--aux", type=int, default=1500)
    given.add_argument("--images", type=int, default=50)
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--plot")
    given.add_argument("--data", default="data/cifar10.npz")
    options = given.parse_args()
    vars(options).update(label=3, classes=None, share=None, batch=1, model="lenet")
    torch.set_num_threads(1)
    {"step": step, "memory": memory, "ratio": ratio}[options.part](options)


if __name__ == "__main__":
    main()
