"""Running one cell: play the client, let the attack work, measure, remember; stop and go on anywhere."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.audit import checks, several
from gradleak.audit.plan import Cell, unmet
from gradleak.audit.store import CellDir
from gradleak.audit.verdict import lead, leaked
from gradleak.calculus import one_thread
from gradleak.errors import Unscored, Unsuited
from gradleak.metrics.match import assign
from gradleak.residual import Residual, residual
from gradleak.rng import Rng
from gradleak.threats import Threat, threat
from gradleak.types import NOTHING, Batch, Client, Guess, Know, Metric, Observation, Secret, Sentence
from gradleak.world.round import Sent, send
from gradleak.world.task import World

CHECKPOINT_SECONDS = float(os.environ.get("GRADLEAK_CHECKPOINT_SECONDS", "5"))

FAILURES = (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError,
            MemoryError)
"""What a model or an attack may raise on data it was not made for: the trial becomes a row without numbers."""

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Stage:
    """Everything one trial plays with; the secret stays here."""

    world: World
    client: Client
    threat: Threat
    secret: Secret
    sent: Sent
    seen: Observation
    exact: bool
    random: bool
    """Whether the update depends on what the client draws and does not tell."""
    truth: Residual

    def truth_like(self, guess: Guess) -> Residual:
        """The truth's residual with as much to say as the guess: with what was dropped, where the guess says it."""
        if not any(name.startswith("drop.") for name in guess.batch.extra):
            return self.truth
        return residual(self.seen, with_extra(self.secret.batch, self.sent.masks))


def with_extra(batch: Batch, extra: Mapping[str, Tensor]) -> Batch:
    return replace(batch, extra={**batch.extra, **extra})


def stage(cell: Cell, trial: int) -> Stage:
    """Draw the batch, send the update, open the door in the wall."""
    world, rng = cell.world(), Rng(cell.seed)
    part, assumed, defense, who = cell.participation(), cell.assumed(), cell.defender(), threat(cell.threat)
    client = part.of(world.learner)
    secret = world.draw(cell.examples, trial, part, rng / "data")
    sent = send(world, part, client, defense, secret, rng / "round" / cell.batch / trial)
    believed = client if cell.assume == cell.client else assumed.of(world.learner)
    release = replace(sent.release, sites=partial(assumed.sites, world.learner))  # where the attacker thinks it drops
    seen = who.observe(release, believed, defense)
    told = sent.masks if Know.DROPOUT in who.knows else {}
    known = Know.DEFENSE in who.knows or cell.defense == "none"
    random = not told and part.random(world.learner, cell.batch)
    exact = known and not defense.random and not random
    return Stage(world, client, who, secret, sent, seen, exact, random, residual(seen, with_extra(secret.batch, told)))


def run_cell(cell: Cell, folder: CellDir, progress: Progress) -> None:
    """Finish a cell, from wherever it stopped."""
    folder.open(cell)
    for trial in range(len(folder.trials()), cell.trials):
        progress(trial / cell.trials)
        with one_thread():
            _run_trial(cell, trial, folder, lambda share, t=trial: progress((t + share) / cell.trials))  # type: ignore[misc]
    folder.finish()
    progress(1.0)


def _run_trial(cell: Cell, trial: int, folder: CellDir, progress: Progress) -> None:
    if suite := cell.suite():
        several.run_trial(cell, suite, trial, folder, progress, answer)
        return
    record, tensors = answer(cell, trial, folder, progress)
    record["warnings"] += checks.idle(threat(cell.threat), record["granted"], record["unused"])
    folder.add_trial(record, tensors)


def answer(cell: Cell, trial: int, folder: CellDir, progress: Progress) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One attack on one trial: its record, and what it guessed."""
    if lacking := unmet(cell):
        return _failed(trial, f"{cell.attack} needs {', '.join(lacking)}, which {cell.threat} does not grant: "
                              f"add it, as in {'+'.join([cell.threat, *lacking])}", []), {}
    scene, began = stage(cell, trial), time.monotonic()
    release = scene.sent.release
    typical = checks.typical_length(lambda b: scene.client(release.params, b, None), scene.seen, cell.examples, Rng(0))
    warnings = list(checks.before(release.update, scene.sent.strength, typical, scene.sent.alive))
    if not checks.finite(release.update):
        return _failed(trial, None, warnings), {}
    try:
        guess, seconds, stopped = _attack(cell, trial, scene, folder, progress)
    except Unsuited as problem:
        reason = f"{cell.attack} does not apply: {problem}"
    except FAILURES as problem:
        reason = f"{cell.attack} failed: {type(problem).__name__}: {problem}"
    else:
        record = _record(cell, trial, scene, guess, seconds, warnings, stopped)
        extra = {f"_extra.{name}": value for name, value in guess.batch.extra.items()}
        proven = {} if guess.certain is None else {"certain": guess.certain}
        earlier = {f"earlier.{step}": reading for step, reading in guess.earlier.items()}
        return record, {"reading": guess.reading, "x": guess.batch.x, "y": guess.batch.y, **proven, **extra, **earlier}
    return {**_failed(trial, reason, warnings), "seconds": time.monotonic() - began}, {}


def _attack(
    cell: Cell, trial: int, scene: Stage, folder: CellDir, progress: Progress,
) -> tuple[Guess, float, str | None]:
    """The attack's answer, the seconds it took over all sittings, and whether the budget ended it."""
    saved, spent = folder.load_state(trial)
    guess = start = _resumed(saved)
    began = saved_at = now = time.monotonic()
    first = lead(cell.scorers())
    for guess in cell.attacker().guesses(scene.seen, (Rng(cell.seed) / "attack" / trial).sealed(), start):
        now = time.monotonic()
        folder.log(_event(trial, guess, scene, first, spent + now - began))
        if now - saved_at > CHECKPOINT_SECONDS:
            folder.save_state(trial, spent + now - began, _packed(guess))
            saved_at = now
        progress(guess.step / guess.steps)
        if spent + now - began > cell.budget / cell.trials and guess.step < guess.steps:
            return guess, spent + now - began, f"stopped by the budget at step {guess.step} of {guess.steps}"
    if guess is None:
        raise Unsuited("it gave no answer")
    return guess, spent + time.monotonic() - began, None


def _record(
    cell: Cell, trial: int, scene: Stage, guess: Guess, seconds: float, warnings: list[str], stopped: str | None,
) -> dict[str, Any]:
    seen, secret = scene.seen, scene.secret
    warnings += checks.replay_of_truth(scene.truth, scene.exact, scene.world.learner)
    warnings += checks.after(guess)
    granted = sorted(know.value for know in seen.facts)
    return {
        "trial": trial, "ids": list(secret.ids),
        "residual": {"guess": residual(seen, guess.batch), "truth": scene.truth_like(guess)},
        **score(cell.scorers(), guess.reading, guess.batch.y, secret, scene.world),
        "granted": granted, "unused": sorted(k.value for k in seen.facts if k not in seen.facts.used),
        "epsilon": privacy.epsilon if (privacy := getattr(cell.defender(), "privacy", None)) else None,
        "distortion": scene.sent.distortion, "strength": scene.sent.strength, "notes": dict(guess.notes),
        "uses": list(getattr(cell.attacker(), "uses", ())),
        "cautions": list(checks.cautions(scene.world.learner, cell.participation(), scene.random, scene.truth)),
        "warnings": warnings, "stopped": stopped, "failed": None, "seconds": seconds,
    }


def _failed(trial: int, reason: str | None, warnings: list[str]) -> dict[str, Any]:
    """A trial without an answer is still a row."""
    return {"trial": trial, "ids": [], "residual": {}, "scores": {}, "blind": {}, "unscored": {}, "leaked": [],
            "match": [], "granted": [], "unused": [], "distortion": None, "strength": None, "notes": {}, "uses": [],
            "cautions": [], "warnings": warnings, "stopped": None, "failed": reason, "seconds": 0.0}


def score(metrics: list[Metric], reading: Tensor, y: Tensor, secret: Secret, world: World) -> dict[str, Any]:
    """Every metric per sample, under one assignment, beside what a guess without the update would score."""
    reading, truth = _as_wide(reading, secret.readings)
    match = assign(reading, truth)
    guesses, truths, blind = (_readable(rows, world) for rows in (reading[match], truth, world.blind(secret)))
    scores: dict[str, list[float]] = {}
    floor: dict[str, list[float]] = {}
    unscored: dict[str, str] = {}
    for metric in metrics:
        try:
            if getattr(metric, "about", "readings") == "labels":
                scores[metric.name] = metric(y, secret.labels)
            else:
                scores[metric.name] = metric(guesses, truths)
                floor[metric.name] = metric(blind, truths)
        except Unscored as reason:
            unscored[metric.name] = str(reason)
    return {"scores": scores, "blind": floor, "unscored": unscored, "match": match,
            "leaked": leaked(scores, floor, metrics)}


def _as_wide(reading: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of tokens, both as long as the longer; images as they are."""
    if truth.is_floating_point():
        return reading, truth
    wide = max(reading.shape[1], truth.shape[1])
    return F.pad(reading, (0, wide - reading.shape[1]), value=NOTHING), F.pad(
        truth, (0, wide - truth.shape[1]), value=NOTHING)


def _readable(rows: Tensor, world: World) -> Tensor | list[Sentence]:
    """What metrics compare: images, or sentences."""
    return rows if world.vocabulary is None else [world.vocabulary.sentence(row) for row in rows]


def _event(trial: int, guess: Guess, scene: Stage, first: Metric | None, seconds: float) -> dict[str, Any]:
    """How far the attack is; with the leading metric's mean, where there is one that can be computed."""
    event = {"trial": trial, "step": guess.step, "steps": guess.steps, "seconds": round(seconds, 3),
             "residual": residual(scene.seen, guess.batch)}
    if scene.world.vocabulary is not None:
        event["text"] = [scene.world.vocabulary.sentence(row).text for row in guess.reading]
    try:
        if first is not None:
            reading, truth = _as_wide(guess.reading, scene.secret.readings)
            value = first(_readable(reading[assign(reading, truth)], scene.world), _readable(truth, scene.world))
            event[first.name] = sum(value) / len(value)
    except Unscored:
        pass
    return event


def _packed(guess: Guess) -> dict[str, Tensor]:
    place = {"_step": torch.tensor(guess.step), "_steps": torch.tensor(guess.steps)}
    notes = {f"note.{k}": torch.tensor(v, dtype=torch.float64) for k, v in guess.notes.items()}
    extra = {f"_extra.{k}": v for k, v in guess.batch.extra.items()}
    return {**{f"state.{k}": v for k, v in guess.state.items()}, **place, **notes, **extra,
            **({} if guess.certain is None else {"_certain": guess.certain}),
            "_x": guess.batch.x, "_y": guess.batch.y, "_reading": guess.reading}


def _resumed(saved: Mapping[str, Tensor]) -> Guess | None:
    if not saved:
        return None
    state = {k.removeprefix("state."): v for k, v in saved.items() if k.startswith("state.")}
    notes = {k.removeprefix("note."): float(v) for k, v in saved.items() if k.startswith("note.")}
    extra = {k.removeprefix("_extra."): v for k, v in saved.items() if k.startswith("_extra.")}
    batch = Batch(saved["_x"], saved["_y"], extra)
    return Guess(batch, saved["_reading"], int(saved["_step"]), int(saved["_steps"]), state, notes,
                 saved.get("_certain"))


def rescore(cell: Cell, folder: CellDir) -> None:
    """Measure stored guesses again, against the examples they were made for; nothing is attacked again."""
    if suite := cell.suite():
        several.rescore(cell, suite, folder, rescore)
        return
    trials = []
    for record in folder.trials():
        if record["scores"]:
            kept = folder.guess(record["trial"])
            secret = cell.world().secret(record["ids"])
            record = {**record, **score(cell.scorers(), kept["reading"], kept["y"], secret, cell.world())}
        trials.append(record)
    folder.rewrite(trials)
