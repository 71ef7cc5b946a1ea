"""Images that are solved for instead of searched: lenet layer by layer, vision transformers in closed form, fully
connected layers by the neurons that are off.

python bench/exact_images.py [recursive] [single] [large] [batches] [beside] [trained] [defended] [rows] [DEFENSE ...]
(CIFAR-10 needs data/cifar10.npz; defenses named are those of `defended`)
"""

import statistics
import sys
import time

import torch
from common import PHOTOS, cifar

from gradleak import registry
from gradleak.metrics.match import assign
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.world.round import send

WIDE = "vit(patch=8, width=384, heads=6, layers=4)"
LARGE = "vit(patch=16, width=768, layers=12, heads=12)"


STEPS = 1200
"""Of training, with 64 images each: ten minutes of a core and more."""


def measured(
    attack: str, model: str, data: str, batch: int, trials: int, defense: str = "none", train: int = 0,
) -> None:
    """Print PSNR, labels and seconds of an attacker who knows nothing beyond the protocol."""
    began = time.process_time()
    world = registry.build("task", parse(f"image(model={model}, data={data}, train={train})")).open(Rng(0))
    if train:
        print(f"{model} trained for {(time.process_time() - began) / 60:.1f} minutes of one core, {train} steps: "
              f"{world.accuracy:.1%} of the other half right", flush=True)
    part, shield = registry.build("client", parse("one_step")), registry.build("defense", parse(defense))
    client, search = part.of(world.learner), registry.build("attack", parse(attack))
    scores: list[float] = []
    seconds, labels, certain = [], 0, 0
    for trial in range(trials):
        secret = world.draw(batch, trial, part, Rng(0))
        sent = send(world, part, client, shield, secret, Rng(1) / trial)
        seen = threat("curious").observe(sent.release, client, shield)
        start = time.perf_counter()
        *_, guess = search.guesses(seen, Rng(2) / trial)
        seconds.append(time.perf_counter() - start)
        order = assign(guess.reading, secret.readings)
        error = (guess.reading[order].double() - secret.readings.double()).square().flatten(1).mean(1)
        scores += (-10 * error.clamp_min(1e-16).log10()).tolist()
        labels += int((guess.batch.y[order] == secret.labels).sum())
        certain += int(guess.notes.get("certain", 0.0))
    each = " ".join(f"{score:.1f}" for score in scores)
    middle, mean, worst = statistics.median(scores), statistics.mean(scores), min(scores)
    print(f"{attack}: {model}, {data.partition('(')[0]}, B={batch}, {defense}: median {middle:.1f} dB, "
          f"mean {mean:.1f}, worst {worst:.1f}; labels {labels} of {len(scores)}; certain {certain} of {trials}; "
          f"{statistics.median(seconds):.1f} s a batch\n  each: {each}", flush=True)


def recursive() -> None:
    for data in filter(None, (cifar(), PHOTOS)):
        measured("recursive", "lenet", data, 1, 8)


def single() -> None:
    for model in ("vit", "vit(patch=8)", WIDE):
        for data in filter(None, (cifar(), PHOTOS)):
            measured("subspace", model, data, 1, 8)


def large() -> None:
    measured("subspace", LARGE, "photos(size=224, count=40)", 1, 4)


def batches() -> None:
    for batch, trials in ((2, 10), (3, 5), (4, 5)):
        measured("subspace", WIDE, cifar() or PHOTOS, batch, trials)


def beside() -> None:
    """What `ig` reads on the same model."""
    for batch, trials in ((1, 4), (2, 2), (4, 1)):
        measured("ig(restarts=1)", WIDE, cifar() or PHOTOS, batch, trials)


def trained() -> None:
    measured("subspace", "vit", cifar() or PHOTOS, 1, 8, train=STEPS)


DEFENSES = ("noise(relative=0.01)", "noise(relative=0.1)", "noise(relative=1)", "prune(keep=0.5)", "prune(keep=0.25)",
            "prune(keep=0.1)", "sign")


def defended() -> None:
    """What is not proven is matched afterwards."""
    for model in ("vit", WIDE):
        for defense in [name for name in sys.argv[1:] if name not in PARTS] or DEFENSES:
            measured("subspace", model, cifar() or PHOTOS, 1, 6, defense)


def rows() -> None:
    for batch in (2, 4, 8):
        measured("subspace", "mlp", cifar() or PHOTOS, batch, 4)


PARTS = {"recursive": recursive, "single": single, "large": large, "batches": batches, "beside": beside,
         "trained": trained, "defended": defended, "rows": rows}
if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in [name for name in sys.argv[1:] if name in PARTS] or PARTS:
        PARTS[name]()
