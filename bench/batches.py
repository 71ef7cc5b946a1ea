"""Batches of images: labels inferred, attacks at equal steps, components one by one, a generator, 224 pixels.

python bench/batches.py compare|components|layers|defended|generator|large [--steps N] [--images N] [--batch 1 4 8]
"""

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import CIFAR, PHOTOS, cifar, measured

from gradleak import registry
from gradleak.attacks.descent import Matching
from gradleak.audit.plan import Audit
from gradleak.report.pictures import png
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.world.round import send

METRICS = ("psnr", "ssim", "label_accuracy")
HF = "hf_gradinv(steps={steps}{more})"
OFF = ", stepwise=false, dropout=0, t1=0, t2=0"
COMPONENTS = {
    "gradients alone": f"{OFF}, tv=0, bn=0",
    "+ image priors": OFF,
    "+ deep layers first, dropout": ", t1=0, t2=0",
    "+ priors scheduled": "",
    "without dropout": ", dropout=0",
    "without BatchNorm": ", bn=0",
}


def resnet(options) -> str:
    data = cifar() or PHOTOS
    if options.size != 32:
        data = f"resized({f'subset({data}, 4000)' if cifar() else data}, size={options.size})"
    return f"image(model={options.net}, data={data}, train={options.train}, draw=loss, public=1000)"


def audited(options, attacks: list[str], batch: int, task: str, **more: object) -> Iterator[str]:
    """A line an attack: means over the images, the share of labels, seconds a step."""
    audit = Audit(task=task, client="one_step(mode=eval)", attacks=tuple(attacks),
                  batch=(batch,), trials=max(1, options.images // batch), metrics=METRICS, budget="10 h",
                  **{"defenses": ("none",), "threats": ("curious+public_data",), **more})
    for row in measured(audit):
        psnr, ssim, labels = (row.scores[name] for name in METRICS)
        yield (f"B={batch} {row.cell.defense:14} {row.cell.threat:22} {row.cell.attack:66} {psnr.mean:5.2f} dB "
               f"[{psnr.low:.1f}, {psnr.high:.1f}], SSIM {ssim.mean:.3f}, labels {labels.mean:4.0%}, "
               f"{row.seconds:.0f} s, {row.samples} images, {row.verdict}")


def compare(options) -> None:
    """At equal steps and starts, each with all its parts: and as published."""
    for batch in options.batch:
        for published in ("", ", published=true") if options.published else ("",):
            attacks = [f"{name}(steps={options.steps}, restarts=1{published})"
                       for name in options.attacks]
            print(*audited(options, attacks, batch, resnet(options)), sep="\n", flush=True)


def components(options) -> None:
    """HF-GradInv's Table 2, row by row, at the first batch size."""
    for name, more in COMPONENTS.items():
        (line,) = audited(options, [HF.format(steps=options.steps, more=more)], options.batch[0], resnet(options))
        print(f"{name:30} {line}", flush=True)


def layers(options) -> None:
    """Its Figure 8: which part of the depth is matched."""
    for low, high in ((0.75, 1.0), (0.5, 1.0), (0.25, 1.0), (0.0, 1.0), (0.25, 0.75)):
        attack = HF.format(steps=options.steps, more=f", shallowest={low}, deepest={high}")
        print(*audited(options, [attack], options.batch[0], resnet(options)), sep="\n", flush=True)


def defended(options) -> None:
    """Its Figure 9: noise at a tenth of each layer's maximum, pruning."""
    attack = HF.format(steps=options.steps, more="")
    print(*audited(options, [attack], options.batch[0], resnet(options), threats=("informed+public_data",),
                   defenses=("noise(peak=0.1)", "prune(keep=0.1, by=layer)")), sep="\n", flush=True)


def generator(options) -> None:
    """LTI's Table 1 on lenet, one image an update: with a generator fitted to 5,000 public images, and without."""
    data = f"npz('{CIFAR}', x=x_test, y=y_test)" if cifar() else PHOTOS
    task = f"image(model=lenet, data={data}, public={5000 if cifar() else 400})"
    own = f"gi_gip(steps={options.steps}, restarts=1, fit={options.fit}"
    attacks = [f"ig(steps={options.steps}, restarts=1)", f"{own})", f"{own}, pixels=false)"]
    print(*audited(options, attacks, 1, task), sep="\n", flush=True)
    if options.defended:
        print(*audited(options, attacks[:2], 1, task, threats=("informed+public_data",),
                       defenses=("sign", "prune(keep=0.01)")), sep="\n", flush=True)


def large(options) -> None:
    """224 pixels: a whole run, seconds a step and the most memory held; the pictures go to --out."""
    for batch in options.batch[:2]:
        world = registry.build("task", parse(
            f"image(model={options.model}, data=photos(size=224, count=60), public=20)")).open(Rng(0))
        part, none = (registry.build(*spec) for spec in (
            ("client", parse("one_step(mode=eval)")), ("defense", parse("none"))))
        client, secret = part.of(world.learner), world.draw(batch, 1, part, Rng(0))
        sent = send(world, part, client, none, secret, Rng(0))
        seen = threat("curious+public_data").observe(sent.release, client, none)
        plan = registry.build("attack", parse(HF.format(steps=options.steps, more=""))).attack
        run = Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))
        state, began = run.begin(None), time.process_time()
        for step in range(options.steps):
            state = run.advance(state, step)
        seconds, guess = (time.process_time() - began) / options.steps, run.guess(state)
        score = registry.build("metric", parse("psnr"))(guess.reading, secret.readings)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{options.model}, 224 px, B={batch}, {options.steps} steps: {seconds:.2f} s of one core a step, "
              f"{held:.2f} GiB at most, {sum(score) / batch:.1f} dB", flush=True)
        for number in range(batch):
            pair = torch.cat([secret.readings[number], guess.reading[number]], 2)
            (Path(options.out) / f"{options.model}-{batch}-{number}.png").write_bytes(png(pair))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    wanted = {each.__name__: each for each in (compare, components, layers, defended, generator, large)}
    parser.add_argument("what", choices=list(wanted))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--train", type=int, default=150, help="steps of training before the attack")
    parser.add_argument("--size", type=int, default=32, help="pixels a side")
    parser.add_argument("--net", default="resnet20", help="the network attacked")
    parser.add_argument("--model", default="efficientnet_lite0", help="for `large`")
    parser.add_argument("--attacks", nargs="+", default=["ig", "gradinversion", "hf_gradinv"], help="for `compare`")
    parser.add_argument("--published", action="store_true", help="`compare` also as published")
    parser.add_argument("--fit", type=int, default=600, help="steps of fitting for `generator`")
    parser.add_argument("--defended", action="store_true", help="`generator` also under sign and pruning")
    parser.add_argument("--out", default=".", help="where `large` writes pictures")
    options = parser.parse_args()
    wanted[options.what](options)


if __name__ == "__main__":
    main()
