"""Learned inversion of images on lenet, CIFAR-10: beside LTI's Table 1, and what each part of it is worth.

`data/cifar10.npz` holds x_train, y_train, x_test, y_test; --data names another file. Fits are kept in a folder that is
thrown away, or with --keep in one that is not. Labels are always inferred.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import isnan
from statistics import mean, median

import torch
from common import CIFAR

from gradleak import registry
from gradleak.attacks.combine import Stages
from gradleak.attacks.learned.ridge import ridge_inverter
from gradleak.attacks.recipes.ig import ig
from gradleak.errors import Unscored
from gradleak.metrics.match import assign
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Attack, Observation, Secret
from gradleak.world.round import send
from gradleak.world.task import World

DEFENSES = {"none": "none", "sign": "sign", "prune": "prune(keep=0.01)", "gauss": "noise(sigma=0.1)"}
STAGES: dict[str, Attack] = {
    "ridge, then ig": Stages((ridge_inverter(), ig(steps=300, restarts=1, rate=0.01))),
}
"""A learned answer as the start of a search, which at ig's own rate would leave it at once."""

PAPER = {"none": 24.8, "sign": 19.0, "prune": 15.9, "gauss": 20.2}
"""PSNR of LTI's Table 1: 50,000 auxiliary images, 1.5 hours of a GPU."""


@cache
def world(task: str) -> World:
    return registry.build("task", parse(task)).open(Rng(0) / "task")  # type: ignore[no-any-return]


def scenes(options: argparse.Namespace, threat_name: str, defense: str) -> Iterator[tuple[Secret, Observation]]:
    """Rounds of one client; --label gives every example the same label, so that one fit serves all."""
    test, train = (f"npz('{options.data}', x=x_{part}, y=y_{part})" for part in ("test", "train"))
    public = f"subset({train}, {options.aux})"
    if options.share is not None:
        test, public = f"halves({test}, 1, 5000)", f"halves({train}, {options.share}, {options.aux})"
    here = world(f"image(model={options.model}, data={test}, public={public})")
    part, shield = registry.build("client", parse("one_step")), registry.build("defense", parse(defense))
    client = part.of(here.learner)
    for trial in range(options.first, options.first + options.images):
        secret = here.draw(options.batch, trial, part, Rng(0) / "data")
        if options.label is not None:
            y = torch.full_like(secret.labels, options.label)
            secret = replace(secret, labels=y, batch=replace(secret.batch, y=y))
        sent = send(here, part, client, shield, secret, Rng(0) / "round" / trial)
        yield secret, threat(threat_name).observe(sent.release, client, shield)


@dataclass(frozen=True)
class Read:
    """What came back of one test image."""

    label: int
    mse: float
    psnr: float
    lpips: float
    right: bool
    seconds: float


def attacked(options: argparse.Namespace, attack: str, defense: str) -> Iterator[Read]:
    matches = attack.startswith(("ig", "dlg"))
    attacker = STAGES[attack] if attack in STAGES else registry.build("attack", parse(attack))
    for trial, (truth, seen) in enumerate(scenes(options, "informed" if matches else "informed+public_data", defense)):
        if options.classes and int(truth.labels[0]) not in options.classes:
            continue
        began = time.monotonic()
        *_, guess = attacker.guesses(seen, Rng(trial).sealed())
        seconds = time.monotonic() - began
        order = assign(guess.reading, truth.readings)
        error = (guess.reading[order] - truth.readings).double().square().flatten(1).mean(1)
        far = _lpips(guess.reading[order], truth.readings)
        for one, apart, y, label in zip(error, far, guess.batch.y[order], truth.labels, strict=True):
            yield Read(int(label), float(one), float(-10 * one.log10()), apart, bool(y == label), seconds)


def _lpips(found: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """Not a number where the network's weights are not there."""
    try:
        return list(registry.build("metric", parse("lpips"))(found, truth))
    except Unscored:
        return [float("nan")] * len(truth)


def row(options: argparse.Namespace, attack: str, name: str) -> list[Read]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRADLEAK_CACHE"] = options.keep or folder
        found = list(attacked(options, attack, DEFENSES.get(name, name)))
    seconds = [each.seconds for each in found]
    slow = sorted(seconds, reverse=True)[: len({each.label for each in found})]
    share = "" if options.share is None else f", share {options.share:g}"
    print(f"{attack}, {name}, {options.aux} public images{share}, B={options.batch}, {len(found)} images: MSE "
          f"{mean(each.mse for each in found):.4f}, PSNR {mean(each.psnr for each in found):.2f} dB, worst "
          f"{min(each.psnr for each in found):.1f}, LPIPS {mean(each.lpips for each in found):.3f}, labels "
          f"{sum(each.right for each in found)} of {len(found)}; {mean(slow):.0f} s to fit, {median(seconds):.2f} s an "
          f"image (LTI's paper {PAPER.get(name, float('nan'))} dB)", flush=True)
    return found


def plot(lines: dict[str, list[tuple[float, list[Read]]]], across: str, to: str) -> None:
    """LTI's Figures 3, 5 and 6."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {"psnr": "PSNR, dB (higher is closer)", "mse": "MSE (lower is closer)", "lpips": "LPIPS (lower is closer)"}
    if isnan(next(iter(lines.values()))[0][1][0].lpips):
        del panels["lpips"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.8 * len(panels), 3.2), layout="constrained")
    for one, (name, said) in zip(axes, panels.items(), strict=True):
        for label, points in lines.items():
            one.plot([x for x, _ in points], [mean(getattr(r, name) for r in found) for _, found in points], "o-",
                     label=label)
        one.set(xlabel=across, ylabel=said)
        if points[0][0] > 1:  # numbers of images
            one.set_xscale("log")
            one.set_xticks([x for x, _ in points], [f"{x:,.0f}" for x, _ in points])
            one.minorticks_off()
        one.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.savefig(to, dpi=110)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--attacks", nargs="+", default=["ridge_inverter"])
    given.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    given.add_argument("--aux", type=int, nargs="+", default=[5000])
    given.add_argument("--shares", type=float, nargs="+", default=[None], help="of the private classes")
    given.add_argument("--plot", help="a file to draw to")
    given.add_argument("--images", type=int, default=100)
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--classes", type=int, nargs="*", help="only test images of these")
    given.add_argument("--label", type=int, help="all test images get this one: one fit serves them all")
    given.add_argument("--batch", type=int, default=1)
    given.add_argument("--model", default="lenet")
    given.add_argument("--data", default=str(CIFAR))
    given.add_argument("--keep", help="a folder for fits: one that was stopped goes on, its seconds those since")
    given.add_argument("--threads", type=int, default=1, help="an audit gives each cell one")
    options = given.parse_args()
    torch.set_num_threads(options.threads)
    lines: dict[str, list[tuple[float, list[Read]]]] = {}
    for aux, share in product(options.aux, options.shares):
        for defense, attack in product(options.defenses, options.attacks):
            found = row(argparse.Namespace(**{**vars(options), "aux": aux, "share": share}), attack, defense)
            lines.setdefault(f"{attack}, {defense}", []).append((aux if share is None else share, found))
    if options.plot:
        across = "public images" if options.shares == [None] else "share of the private data's classes"
        plot(lines, across, options.plot)


if __name__ == "__main__":
    main()
