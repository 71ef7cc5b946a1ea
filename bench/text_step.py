"""What one matching step on text costs beside plain torch loops that take the same one: LAMP's way (every gradient,
create_graph, backward into everything), and the same with backward to the candidate only.

Cosine, averaged over tensors. One thread, interleaved, medians; peak memory in processes of their own.

python bench/text_step.py [minilm|base|large|all] [--parts step memory scoring lanes nearest growth] [--plot]
"""

import argparse
import gc
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from step import clocked
from text_common import KINDS, Memory, Plain, Scene, closest, memory, scene, steps
from torch import Tensor

from gradleak.attacks.parts.moves import permutations
from gradleak.attacks.scoring import Scoring
from gradleak.rng import Rng

MODELS = ("minilm", "base", "large")
PARTS = ("step", "memory", "scoring", "lanes", "nearest", "growth")
TOKENS, CANDIDATES, LOOPED, LANES, OF = 12, 200, 20, 8, 4
BARS = {("minilm", "everything"): 2.5, ("minilm", "only"): 2.0, ("base", "everything"): 3.5, ("base", "only"): 2.5,
        ("base", "memory"): 0.5, "scoring": 4.0, "changed": 6.0}
"""What a step must at least gain, and (memory) at most hold."""

SAID = {"everything": "LAMP's way", "only": "to x only", "ours": "ours"}
GROWTH = {"batch": (1, 2, 4, 8), "tokens": (8, 16, 32, 64), "layers": (2, 6, 12)}
PLOT = Path(__file__).parent.parent / "docs" / "text-step.png"


def verdict(value: float, bar: float | None, at_most: bool = False) -> str:
    if bar is None:
        return "no bar"
    met = value <= bar if at_most else value >= bar
    return f"bar {'<=' if at_most else '>='} {bar:g}: {'met' if met else 'NOT met'}"


def interleaved(ways: Sequence[Callable[[], object]], rounds: int, block: int = 1) -> list[list[float]]:
    """Seconds a call: a list for each way, entries of one round measured one after the other."""
    for way in ways:
        clocked(way, 2)
    found = [[clocked(way, block) for way in ways] for _ in range(rounds)]
    return [list(column) for column in zip(*found, strict=True)]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median of each round's own: what disturbs a round disturbs both."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def ms(seconds: Sequence[float], per: float = 1) -> str:
    return f"{statistics.median(seconds) * 1e3 / per:8.2f} ms"


def step_part(model: str, here: Scene, rounds: int) -> None:
    ways = steps(here)
    first, other = ways["only"](), ways["ours"]()
    off = float((first - other).norm() / first.norm())
    found = dict(zip(KINDS, interleaved([ways[kind] for kind in KINDS], rounds, 3 if model == "minilm" else 1),
                     strict=True))
    print(f"  a step ({here.run.replay.way}; gradients differ by {off:.0e}), median of {rounds}")
    for kind in KINDS:
        gain = ratio(found[kind], found["ours"])
        note = "" if kind == "ours" else f"{gain:6.2f}x  {verdict(gain, BARS.get((model, kind)))}"
        print(f"    {SAID[kind]:12} {ms(found[kind])}  {note}".rstrip(), flush=True)


def memory_part(model: str) -> None:
    found = {kind: memory(kind, model, 1, TOKENS) for kind in KINDS}
    print("  peak MiB of a process of its own (loaded: libraries, model, update; above: what steps add to that)")
    ours = found["ours"]
    for kind, seen in found.items():
        share = ours.step / seen.step
        bar = BARS.get((model, "memory")) if kind == "everything" else None
        note = "" if kind == "ours" else f"ours {share:.2f}x of it, above {_above(ours) / _above(seen):.2f}x"
        judged = "" if bar is None else verdict(share, bar, at_most=True)
        print(f"    {SAID[kind]:12} loaded {seen.loaded:6.0f}  steps {seen.step:6.0f}  above {_above(seen):6.0f}  "
              f"preparing {seen.preparing:6.0f}  {note}  {judged}".rstrip(), flush=True)


def _above(seen: Memory) -> float:
    return max(seen.step - seen.loaded, 1.0)


def scoring_part(model: str, rounds: int) -> None:
    for count, name in ((1, "scoring"), (OF, "changed")):
        here = scene(model, count, TOKENS)
        x, which = here.x, 0
        orders = permutations(here.run.words.inside[which], CANDIDATES, (Rng(0) / "orders").numpy())
        instead = x[which][orders]
        whole = x.repeat(len(instead), 1, 1, 1)
        whole[:, which] = instead
        plain = Plain(here.net, here.seen, here.y, here.mask)
        found = interleaved([lambda p=plain, w=whole: p.score(w[:LOOPED]), _scored(here, which, instead, whole)],
                            rounds)
        per = [[seconds / many for seconds in column] for column, many in zip(found, (LOOPED, len(instead)),
                                                                            strict=True)]
        off = max(abs(a - float(b)) for a, b in zip(plain.score(whole[:LOOPED]), _scored(here, which, instead, whole)(),
                                                    strict=False))
        gain = ratio(*per)
        what = "one sentence" if count == 1 else f"one of {count} sentences changes"
        print(f"  a candidate of {len(instead)}, {what} (scores differ by {off:.0e}): one by one {ms(per[0])}, "
              f"ours {ms(per[1])}  {gain:.2f}x  {verdict(gain, BARS[name])}", flush=True)


def _scored(here: Scene, which: int, instead: Tensor, whole: Tensor) -> Callable[[], Tensor]:
    scoring: Scoring = here.run.scoring
    if len(here.x) == 1:
        extra = here.run.room.extra(len(whole))
        return lambda: scoring(whole, here.y.expand(len(whole), -1), extra)
    extra = {name: value[0] for name, value in here.run.room.extra(1).items()}
    return lambda: scoring.changed(here.x, here.y, extra, which, instead)


def lanes_part(here: Scene, rounds: int) -> None:
    evaluate, plain = here.run.evaluator(0), Plain(here.net, here.seen, here.y, here.mask)
    lamp, one, many = interleaved([lambda: plain.everything(here.x), lambda: evaluate(here.z[:1]),
                                   lambda: evaluate(here.z[:LANES])], rounds)
    each = [seconds / LANES for seconds in many]
    print(f"  a restart's step, {LANES} at once {ms(each)}: {ratio(one, each):.2f}x over ours one at a time, "
          f"{ratio(lamp, each):.2f}x over LAMP's way", flush=True)


def nearest_part(here: Scene, rounds: int) -> None:
    table, nearest = here.seen.vocabulary.table, here.run.words.nearest
    for count in (1, OF):
        x = here.x[:1].repeat(count, 1, 1)
        copied, cached = interleaved([lambda x=x: closest(x, table), lambda x=x: nearest(x)], rounds)
        print(f"  nearest words, {count} x {TOKENS}: table copied {ms(copied)}, one table kept {ms(cached)}  "
              f"{ratio(copied, cached):.2f}x", flush=True)


Point = tuple[int, dict[str, float], dict[str, float]]


def growth(rounds: int) -> dict[str, list[Point]]:
    """Seconds and MiB above what was loaded, for ours and backward to x only, along each axis; MiniLM's width."""
    found: dict[str, list[Point]] = {}
    print(f"\ngrowth (MiniLM's width; 1 x {TOKENS} tokens, 6 layers, but for what grows); MiB above model and update\n"
          f"  {'':8} {'':>4} {'to x only':>12} {'ours':>11} {'ratio':>6} {'to x only':>10} {'ours':>6}")
    for axis, values in GROWTH.items():
        for value in values:
            case = {"batch": 1, "tokens": TOKENS, "layers": 6, axis: value}
            model = f"layers{case['layers']}"
            here = scene(model, case["batch"], case["tokens"])
            ways = steps(here)
            times = interleaved([ways["only"], ways["ours"]], rounds)
            del here, ways
            gc.collect()
            held = {kind: _above(memory(kind, model, case["batch"], case["tokens"])) for kind in ("only", "ours")}
            found.setdefault(axis, []).append(
                (value, dict(zip(("only", "ours"), map(statistics.median, times), strict=True)), held))
            print(f"  {axis:8} {value:4} {ms(times[0]):>12} {ms(times[1]):>11} {ratio(*times):6.2f} "
                  f"{held['only']:10.0f} {held['ours']:6.0f}", flush=True)
    return found


def plot(found: dict[str, list[Point]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator

    figure, axes = pyplot.subplots(2, len(found), figsize=(10, 6), sharey="row", squeeze=False,
                                   layout="constrained")
    units = {"batch": "sentences in the batch", "tokens": "tokens a sentence", "layers": "layers"}
    for column, (axis, points) in enumerate(found.items()):
        values = [point[0] for point in points]
        for row, scale in ((0, 1e3), (1, 1.0)):
            here = axes[row][column]
            for kind, mark in (("only", "s--"), ("ours", "o-")):
                here.loglog(values, [point[1 + row][kind] * scale for point in points], mark, label=SAID[kind])
            here.set_xticks(values, [str(value) for value in values], minor=False)
            here.xaxis.set_minor_locator(NullLocator())
            here.grid(alpha=0.3)
            here.set_xlabel(units[axis])
    axes[0][0].set_ylabel("one matching step (ms)")
    axes[1][0].set_ylabel("peak above model and update (MiB)")
    axes[0][0].legend()
    figure.savefig(file, dpi=120)
    print(f"{file.name} written")


def main() -> None:
    torch.set_num_threads(1)
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=[], choices=[*MODELS, "all", []], metavar="|".join(MODELS))
    options.add_argument("--parts", nargs="*", default=[part for part in PARTS if part != "growth"], choices=PARTS)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--plot", action="store_true", help=f"measure growth and draw {PLOT.name}")
    given = options.parse_args()
    chosen = MODELS if "all" in given.models else given.models or MODELS[:2]
    parts = set(given.parts)
    for model in chosen if parts - {"growth"} else ():
        print(f"\n{model}, 1 x {TOKENS} tokens", flush=True)
        if parts & {"step", "lanes", "nearest"}:
            here = scene(model, 1, TOKENS)
            if "step" in parts:
                step_part(model, here, given.rounds)
            if "lanes" in parts:
                lanes_part(here, given.rounds)
            if "nearest" in parts:
                nearest_part(here, given.rounds)
            del here
            gc.collect()
        if "scoring" in parts:
            scoring_part(model, max(2, given.rounds // 3))
        if "memory" in parts:
            memory_part(model)
    if given.plot or "growth" in parts:
        found = growth(given.rounds)
        if given.plot:
            plot(found, PLOT)


if __name__ == "__main__":
    main()
