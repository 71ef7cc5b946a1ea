"""Learned inversion of images on lenet, CIFAR-10: beside LTI's Table 1, and what each part of it is worth.

`data/cifar10.npz` holds x_train, y_train, x_test, y_test; --data names another file. Fits are kept in a folder that is
thrown away. Labels are always inferred.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import torch
from common import CIFAR

from gradleak import registry
from gradleak.audit.plan import Audit
from gradleak.audit.run import stage
from gradleak.metrics.match import assign
from gradleak.rng import Rng
from gradleak.spec import parse

DEFENSES = {"none": "none", "sign": "sign", "prune": "prune(keep=0.01)", "gauss": "noise(sigma=0.1)"}
PAPER = {"none": 24.8, "sign": 19.0, "prune": 15.9, "gauss": 20.2}
"""PSNR of LTI's Table 1: 50,000 auxiliary images, 1.5 hours of a GPU."""


def attacked(options: argparse.Namespace, attack: str, defense: str) -> Iterator[tuple[int, float, float, bool, float]]:
    """Per test image: its class, MSE, PSNR, whether the label was found, and seconds."""
    data = f"npz('{options.data}', x=x_{{0}}, y=y_{{0}})"
    public = f"subset({data.format('train')}, {options.aux})"
    task = f"image(model={options.model}, data={data.format('test')}, public={public})"
    threat = "informed" if attack.startswith(("ig", "dlg")) else "informed+public_data"
    (cell,) = Audit(task=task, threats=(threat,), defenses=(defense,), attacks=(attack,), batch=(options.batch,),
                    trials=options.images).cells()
    attacker = registry.build("attack", parse(attack))
    for trial in range(options.first, options.first + options.images):
        scene = stage(cell, trial)
        if options.classes and int(scene.secret.labels[0]) not in options.classes:
            continue
        began = time.monotonic()
        *_, guess = attacker.guesses(scene.seen, Rng(trial).sealed())
        seconds, truth = time.monotonic() - began, scene.secret
        order = assign(guess.reading, truth.readings)
        error = (guess.reading[order] - truth.readings).double().square().flatten(1).mean(1)
        for one, y, label in zip(error, guess.batch.y[order], truth.labels, strict=True):
            yield int(label), float(one), float(-10 * one.log10()), bool(y == label), seconds


def row(options: argparse.Namespace, attack: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRADLEAK_CACHE"] = folder
        found = list(attacked(options, attack, DEFENSES.get(name, name)))
    _, errors, scores, right, seconds = zip(*found, strict=True)
    slow = sorted(seconds, reverse=True)[: len({label for label, *_ in found})]
    print(f"{attack}, {name}, {options.aux} public images, B={options.batch}: MSE {statistics.mean(errors):.4f}, PSNR "
          f"{statistics.mean(scores):.2f} dB, worst {min(scores):.1f}, labels {sum(right)} of {len(found)}; "
          f"{statistics.mean(slow):.0f} s to fit, {statistics.median(seconds):.2f} s an image"
          f" (LTI's paper {PAPER.get(name, float('nan'))} dB)", flush=True)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--attacks", nargs="+", default=["ridge_inverter"])
    given.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    given.add_argument("--aux", type=int, nargs="+", default=[5000])
    given.add_argument("--images", type=int, default=100)
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--classes", type=int, nargs="*", help="only test images of these")
    given.add_argument("--batch", type=int, default=1)
    given.add_argument("--model", default="lenet")
    given.add_argument("--data", default=str(CIFAR))
    options = given.parse_args()
    torch.set_num_threads(1)
    for aux in options.aux:
        for defense in options.defenses:
            for attack in options.attacks:
                row(argparse.Namespace(**{**vars(options), "aux": aux}), attack, defense)


if __name__ == "__main__":
    main()
