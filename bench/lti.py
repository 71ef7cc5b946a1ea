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
from dataclasses import replace
from functools import cache

import torch
from common import CIFAR

from gradleak import registry
from gradleak.attacks.combine import Stages
from gradleak.attacks.learned.ridge import ridge_inverter
from gradleak.attacks.recipes.ig import ig
from gradleak.metrics.match import assign
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Attack, Observation, Secret
from gradleak.world.round import send
from gradleak.world.task import World

DEFENSES = {"none": "none", "sign": "sign", "prune": "prune(keep=0.01)", "gauss": "noise(sigma=0.1)"}
STAGES: dict[str, Attack] = {
    "ridge, then ig": Stages((ridge_inverter(), ig(steps=300, restarts=1))),
}
"""A learned answer as the start of a search."""

PAPER = {"none": 24.8, "sign": 19.0, "prune": 15.9, "gauss": 20.2}
"""PSNR of LTI's Table 1: 50,000 auxiliary images, 1.5 hours of a GPU."""


@cache
def world(task: str) -> World:
    return registry.build("task", parse(task)).open(Rng(0) / "task")  # type: ignore[no-any-return]


def scenes(options: argparse.Namespace, threat_name: str, defense: str) -> Iterator[tuple[Secret, Observation]]:
    """Rounds of one client; --label gives every example the same label, so that one fit serves all."""
    data = f"npz('{options.data}', x=x_{{0}}, y=y_{{0}})"
    public = f"subset({data.format('train')}, {options.aux})"
    here = world(f"image(model={options.model}, data={data.format('test')}, public={public})")
    part, shield = registry.build("client", parse("one_step")), registry.build("defense", parse(defense))
    client = part.of(here.learner)
    for trial in range(options.first, options.first + options.images):
        secret = here.draw(options.batch, trial, part, Rng(0) / "data")
        if options.label is not None:
            y = torch.full_like(secret.labels, options.label)
            secret = replace(secret, labels=y, batch=replace(secret.batch, y=y))
        sent = send(here, part, client, shield, secret, Rng(0) / "round" / trial)
        yield secret, threat(threat_name).observe(sent.release, client, shield)


def attacked(options: argparse.Namespace, attack: str, defense: str) -> Iterator[tuple[int, float, float, bool, float]]:
    """Per test image: its class, MSE, PSNR, whether the label was found, and seconds."""
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
        for one, y, label in zip(error, guess.batch.y[order], truth.labels, strict=True):
            yield int(label), float(one), float(-10 * one.log10()), bool(y == label), seconds


def row(options: argparse.Namespace, attack: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRADLEAK_CACHE"] = folder
        found = list(attacked(options, attack, DEFENSES.get(name, name)))
    _, errors, scores, right, seconds = zip(*found, strict=True)
    slow = sorted(seconds, reverse=True)[: len({label for label, *_ in found})]
    print(f"{attack}, {name}, {options.aux} public images, B={options.batch}, {len(found)} images: MSE "
          f"{statistics.mean(errors):.4f}, PSNR {statistics.mean(scores):.2f} dB, worst {min(scores):.1f}, labels "
          f"{sum(right)} of {len(found)}; {statistics.mean(slow):.0f} s to fit, {statistics.median(seconds):.2f} s an "
          f"image (LTI's paper {PAPER.get(name, float('nan'))} dB)", flush=True)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--attacks", nargs="+", default=["ridge_inverter"])
    given.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    given.add_argument("--aux", type=int, nargs="+", default=[5000])
    given.add_argument("--images", type=int, default=100)
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--classes", type=int, nargs="*", help="only test images of these")
    given.add_argument("--label", type=int, help="all test images get this one: one fit serves them all")
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
