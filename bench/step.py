"""What one matching step costs beside a plain torch loop that does the same: time interleaved, peak memory apart.

Cosine, total variation, Adam on the sign, box. One thread, medians of blocks.   python bench/step.py
"""

import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from gradleak import registry
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.parts import directions, objectives
from gradleak.attacks.parts.labels import Given
from gradleak.attacks.parts.priors import total_variation
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.world.round import send

CASES = (("lenet", 1), ("convnet", 1), ("resnet20", 4), ("resnet18", 4))


def scene(model: str, batch: int):
    world = registry.build("task", parse(f"image(model={model}, data=photos(size=32, count=40))")).open(Rng(0))
    part = registry.build("client", parse("one_step(mode=eval)"))
    secret = world.draw(batch, 0, part, Rng(0))
    client, none = part.of(world.learner), registry.build("defense", parse("none"))
    return world, secret, threat("curious+labels").observe(
        send(world, part, client, none, secret, Rng(0)).release, client, none)


def ours(world, secret, seen) -> Callable[[], None]:
    plan = Descent(10**6, Given(), objectives.cosine, ((0.01, total_variation),), direction=directions.sign)
    run = Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))
    state = run.begin(None)

    def step() -> None:
        nonlocal state
        state = run.advance(state, 0)

    return step


def plain(world, secret, seen) -> Callable[[], None]:
    model = world.learner.modes["eval"]
    for name, p in model.named_parameters():
        p.data.copy_(seen.params[name])
        p.requires_grad_()
    weights = list(model.parameters())
    reference = [seen.update[name] for name, _ in model.named_parameters()]
    x = torch.randn(secret.batch.x.shape, requires_grad=True)
    labels = secret.labels.sort().values
    optimiser = torch.optim.Adam([x], lr=0.1)

    def step() -> None:
        optimiser.zero_grad()
        grads = torch.autograd.grad(F.cross_entropy(model(x), labels), weights, create_graph=True)
        dot = sum((a * b).sum() for a, b in zip(grads, reference, strict=True))
        size = sum(a.pow(2).sum() for a in grads).sqrt() * sum(b.pow(2).sum() for b in reference).sqrt()
        tv = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        (x.grad,) = torch.autograd.grad(1 - dot / size + 0.01 * tv, x)
        x.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0, 1)

    return step


def clocked(step: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - began) / times


def resident(field: str, reset: bool = False) -> float:
    """MiB of this process; `reset` gives freed memory back and starts the high-water mark anew (Linux)."""
    if reset:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) for text in lines if text.startswith(field)) / 1024


def peak(kind: str, model: str, batch: int) -> float:
    """MiB above what the process held before its first step, in a process of its own."""
    command = [sys.executable, __file__, kind, model, str(batch)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) == 4:
        step = {"ours": ours, "plain": plain}[sys.argv[1]](*scene(sys.argv[2], int(sys.argv[3])))
        before = resident("VmRSS", reset=True)
        for _ in range(5):
            step()
        print(resident("VmHWM") - before)
        return
    print(f"{'model':10} {'batch':>5} {'plain ms':>9} {'ours ms':>9} {'ratio':>6} {'plain MiB':>10} {'ours MiB':>9}")
    for model, batch in CASES:
        a, b = ours(*scene(model, batch)), plain(*scene(model, batch))
        block = 20 if model in ("lenet", "convnet") else 2
        clocked(a, 3), clocked(b, 3)
        pairs = [(clocked(a, block), clocked(b, block)) for _ in range(15)]
        mine, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        ratio = statistics.median(one / other for one, other in pairs)
        memory = [peak(kind, model, batch) for kind in ("plain", "ours")]
        print(f"{model:10} {batch:5} {theirs * 1e3:9.2f} {mine * 1e3:9.2f} {ratio:6.2f} {memory[0]:10.0f} "
              f"{memory[1]:9.0f}", flush=True)


if __name__ == "__main__":
    main()
