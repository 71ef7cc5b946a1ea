"""What GRAB costs: candidates a second beside a plain loop, memory by batch size; and what its learnt masks are worth.
Called by bench/grab.py."""

import argparse
import resource
import time
from pathlib import Path
from statistics import median

import torch
from text import drawn
from torch import Tensor

from gradleak import registry
from gradleak.attacks.combine import Alternate
from gradleak.attacks.descent import Matching
from gradleak.attacks.parts import objectives
from gradleak.attacks.scoring import Scoring
from gradleak.factored import Reference
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch, Know, Observation, Secret
from gradleak.world.task import World

MANY, FEW, ROUNDS = 96, 4, 5


def opened_world(given: argparse.Namespace, folder: Path, batch: int) -> World:
    file = drawn(given.corpus, given.data, max(64, batch), folder)
    world: World = registry.build("task", parse(f"text(model={given.model}, data=lines({str(file)!r}))")).open(Rng(0))
    return world


def scene(given: argparse.Namespace, folder: Path, batch: int) -> tuple[World, Secret, Observation]:
    from grab import observed

    world = opened_world(given, folder, batch)
    return world, *observed(world, (given.model, "train", "none", "curious+labels+lengths", ""), batch, 0, 0)


def opened(seen: Observation) -> Matching:
    attack = registry.build("attack", parse("grab"))
    assert isinstance(attack, Alternate)
    plan = attack.descent
    return Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))


def one_at_a_time(seen: Observation, objective: objectives.Objective, batches: list[Batch]) -> Tensor:
    """Every candidate by itself: all sentences, all gradients multiplied out."""
    observed, found = Reference(seen.update), []
    for batch in batches:
        with torch.no_grad():
            update = seen.replay(batch)
        found.append(objective({name: value[None] for name, value in update.items()}, observed))
    return torch.cat(found)


def speed(given: argparse.Namespace, folder: Path) -> None:
    """Candidates that differ in one word of one sentence, with masks that were learnt for a few steps."""
    batch = max(given.batch, 1)
    _, _, seen = scene(given, folder, batch)
    run = opened(seen)
    state = run.judge(run.advance(run.begin(None), 0))
    ids, y, beside = state["told.ids"], state["told.y"], state["told.beside"]
    told, usable = run.words.told(ids[None], y[None], beside[None]), run.words.nearest.tokens
    extra = {name: value[0] for name, value in told.extra.items()}
    masks = run.words.masks
    assert masks is not None

    def versions(which: int, count: int) -> Tensor:
        rows, place = ids[which].repeat(count, 1), int(run.words.inside[which].nonzero()[0])
        rows[:, place] = usable[(Rng(1) / "words" / which).permutation(len(usable))[:count]]
        return rows

    def many(scoring: Scoring, which: int) -> Tensor:
        more = masks.moved(beside, which, torch.arange(ids.shape[1]).repeat(MANY, 1))
        return scoring.changed(told.x[0], y, extra, which, run.words.embed(versions(which, MANY)), more)

    def few(objective: objectives.Objective, which: int) -> Tensor:
        changed = (torch.cat([ids[:which], row[None], ids[which + 1 :]]) for row in versions(which, FEW))
        return one_at_a_time(seen, objective, [Batch(run.words.embed(rows), y, extra) for rows in changed])

    lengths = ", ".join(str(int(row.sum())) for row in ids != NOTHING)
    print(f"\nspeed: batch {batch}, sentences of {lengths} tokens, each changed in turn: {MANY} candidates at once "
          f"beside {FEW} one at a time, medians of {ROUNDS}, interleaved")
    compared = {"cosine of each layer": objectives.layer_cosine, "length of each layer": objectives.norms}
    for name, objective in compared.items():
        scoring, quick, slow, off = Scoring(run.replay, objective, run.reference, masks.axes), [], [], 0.0
        for _ in range(ROUNDS):
            fast, alone, spent = [], [], []
            for which in range(batch):
                began = time.process_time()
                fast.append(many(scoring, which))
                spent.append(time.process_time())
                alone.append(few(objective, which))
                spent[-1:] = [spent[-1] - began, time.process_time() - spent[-1]]
            quick.append(sum(spent[::2]) / batch / MANY)
            slow.append(sum(spent[1::2]) / batch / FEW)
            off = max(float((a[:FEW] / b - 1).abs().max()) for a, b in zip(fast, alone, strict=True))
        print(f"  {name}: {1 / median(quick):.0f} a second beside {1 / median(slow):.1f}, "
              f"{median(slow) / median(quick):.1f} times as many; they differ by {off:.0e}", flush=True)


def memory(given: argparse.Namespace, folder: Path) -> None:
    """A few steps and one sentence of a sweep."""
    batch = max(given.batch, 1)
    _, _, seen = scene(given, folder, batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    run = opened(seen)
    state, began = run.begin(None), time.process_time()
    for step in range(3):
        state = run.advance(state, step)
    each, began = (time.process_time() - began) / 3, time.process_time()
    state = run.judge(state)
    if batch <= 8:
        registry.build("attack", parse("grab")).beam.improve(run, state, Rng(0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    swept = f", {time.process_time() - began:.0f} s a sweep" if batch <= 8 else ""
    print(f"\nmemory: batch {batch}, {run.room.shape[1]} tokens the longest: {run.size} numbers of words, "
          f"{run.room.beside} of masks ({run.room.beside * 4 / 2**20:.1f} MiB a copy); {before:.2f} GiB before, "
          f"{peak:.2f} GiB at most; {each:.2f} s a step{swept}", flush=True)


def masks(given: argparse.Namespace, folder: Path) -> None:
    """How far masks learnt in one round are the true ones, and how well the true words explain the update with them as
    they are, believed by half, or rounded to dropped and kept."""
    from grab import observed

    world = opened_world(given, folder, 1)
    print("\nmasks: of those learnt below 0.5, dropped; of the dropped, below 0.5 | mismatch of the true words with "
          "masks at their mean, learnt, by half, rounded")
    for trial in range(given.first, given.first + given.sentences):
        row = (given.model, "train", "none", "curious+labels+lengths", "")
        secret, seen = observed(world, row, 1, trial, 0)
        _, told = observed(world, (*row[:3], "curious+labels+lengths+dropout", ""), 1, trial, 0)
        truth, run = told.facts[Know.DROPOUT], opened(seen)
        assert isinstance(truth, dict) and run.words.masks is not None
        state = run.begin(None)
        for step in range(run.plan.steps):
            state = run.advance(state, step)
        found = state["best"][0, run.size : run.size + run.words.beside]
        kept = torch.cat([(truth[name] > 0).flatten() for name in run.words.masks.sites])
        mean, off = run.words.masks.mean, []
        scoring = Scoring(run.replay, objectives.layer_cosine, run.reference)
        for tried in (mean, found, torch.lerp(mean, found, 0.5), (found > 0.5).to(found)):
            batch = run.words.told(secret.readings[None], secret.labels[None], tried[None])
            off.append(float(scoring(batch.x, batch.y, batch.extra)))
        below = found < 0.5
        print(f"  {float((~kept)[below].float().mean()):.2f} {float(below[~kept].float().mean()):.2f} | "
              + " ".join(f"{value:.3f}" for value in off), flush=True)
