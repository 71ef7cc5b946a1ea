"""Running one cell: play the client, let the attack work, measure, remember; stop and go on anywhere."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak.audit import checks
from gradleak.audit.plan import Cell, unmet
from gradleak.audit.store import CellDir
from gradleak.audit.verdict import leaked
from gradleak.errors import Unsuited
from gradleak.metrics.image import blind
from gradleak.metrics.lpips import Unscored
from gradleak.metrics.match import assign
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.threats import Threat, threat
from gradleak.types import Batch, Client, Defense, Guess, Know, Metric, Observation, Secret
from gradleak.world.round import Sent, send
from gradleak.world.task import World

CHECKPOINT_SECONDS = 5.0

FAILURES = (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError)
"""What a model or an attack may raise on data it was not made for: the trial becomes a row without numbers."""

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Stage:
    """Everything one trial plays with; the secret stays here."""

    world: World
    client: Client
    defense: Defense
    threat: Threat
    secret: Secret
    sent: Sent
    seen: Observation
    exact: bool


def stage(cell: Cell, trial: int) -> Stage:
    """Draw the batch, send the update, open the door in the wall."""
    world, rng = cell.world(), Rng(cell.seed)
    part, assumed, defense, who = cell.participation(), cell.assumed(), cell.defender(), threat(cell.threat)
    client = part.of(world.learner)
    secret = world.draw(cell.batch, trial, part, rng / "data")
    sent = send(world, part, client, defense, secret, rng / "round" / cell.batch / trial)
    believed = client if cell.assume == cell.client else assumed.of(world.learner)
    seen = who.observe(sent.release, believed, defense)
    known = Know.DEFENSE in who.knows or cell.defense == "none"
    exact = known and not defense.random and not part.random(world.learner, cell.batch)
    return Stage(world, client, defense, who, secret, sent, seen, exact)


def run_cell(cell: Cell, folder: CellDir, progress: Progress) -> None:
    """Finish a cell, from wherever it stopped."""
    torch.set_num_threads(1)
    folder.open(cell)
    lacking = unmet(cell)
    for trial in range(len(folder.trials()), cell.trials):
        progress(trial / cell.trials)
        if lacking:
            reason = (f"{cell.attack} needs {', '.join(lacking)}, which {cell.threat} does not grant: "
                      f"add it, as in {'+'.join([cell.threat, *lacking])}")
            folder.add_trial(_failed(cell, trial, reason), {})
            continue
        try:
            _run_trial(cell, trial, folder, lambda share, t=trial: progress((t + share) / cell.trials))  # type: ignore[misc]
        except Unsuited as problem:
            folder.add_trial(_failed(cell, trial, f"{cell.attack} does not apply: {problem}"), {})
        except FAILURES as problem:
            folder.add_trial(_failed(cell, trial, f"{cell.attack} failed: {type(problem).__name__}: {problem}"), {})
    folder.finish()
    progress(1.0)


def _run_trial(cell: Cell, trial: int, folder: CellDir, progress: Progress) -> None:
    scene = stage(cell, trial)
    seen = scene.seen
    warnings = list(checks.before(scene.sent.release.update, checks.typical_length(seen, cell.batch, Rng(cell.seed))))
    saved, spent = folder.load_state(trial)
    start = _resumed(saved)
    guess, stopped = start, None
    began = saved_at = time.monotonic()
    metric = cell.scorers()[0]
    for guess in cell.attacker().guesses(seen, Rng(cell.seed) / "attack" / trial, start):
        now = time.monotonic()
        folder.log(_event(trial, guess, scene, metric, spent + now - began))
        if now - saved_at > CHECKPOINT_SECONDS:
            folder.save_state(trial, spent + now - began, _packed(guess))
            saved_at = now
        progress(guess.step / guess.steps)
        if spent + now - began > cell.budget / cell.trials and guess.step < guess.steps:
            stopped = f"stopped by the budget at step {guess.step} of {guess.steps}"
            break
    if guess is None:
        raise Unsuited("it gave no answer")
    record = _record(cell, trial, scene, guess, spent + time.monotonic() - began, warnings, stopped)
    folder.add_trial(record, {"reading": guess.reading, "x": guess.batch.x, "y": guess.batch.y})


def _record(
    cell: Cell, trial: int, scene: Stage, guess: Guess, seconds: float, warnings: list[str], stopped: str | None,
) -> dict[str, Any]:
    seen, secret = scene.seen, scene.secret
    truth = residual(seen, secret.batch)
    warnings += checks.replay_of_truth(truth, scene.exact, scene.world.learner)
    warnings += checks.after(guess, seen, scene.threat)
    granted = sorted(know.value for know in seen.facts)
    return {
        "trial": trial, "ids": list(secret.ids), "residual": {"guess": residual(seen, guess.batch), "truth": truth},
        **score(cell.scorers(), guess.reading, guess.batch.y, secret),
        "granted": granted, "unused": sorted(k.value for k in seen.facts if k not in seen.facts.used),
        "distortion": scene.sent.distortion, "strength": scene.sent.strength, "notes": dict(guess.notes),
        "warnings": warnings, "stopped": stopped, "failed": None, "seconds": seconds,
    }


def _failed(cell: Cell, trial: int, reason: str) -> dict[str, Any]:
    """A trial without an answer is still a row."""
    return {"trial": trial, "ids": [], "residual": {}, "scores": {}, "blind": {}, "unscored": {}, "leaked": [],
            "match": [], "granted": [], "unused": [], "distortion": None, "strength": None, "notes": {},
            "warnings": [], "stopped": None, "failed": reason, "seconds": 0.0}


def hard(y: Tensor) -> Tensor:
    """Class numbers, from class numbers or soft labels."""
    return y.argmax(-1) if y.ndim == 2 else y


def score(metrics: list[Metric], reading: Tensor, y: Tensor, secret: Secret) -> dict[str, Any]:
    """Every metric per sample, under one assignment, beside what a flat picture would score."""
    match = assign(reading, secret.readings)
    scores: dict[str, list[float]] = {}
    floor: dict[str, list[float]] = {}
    unscored: dict[str, str] = {}
    for metric in metrics:
        try:
            if getattr(metric, "about", "readings") == "labels":
                scores[metric.name] = metric(hard(y), secret.labels)
            else:
                scores[metric.name] = metric(reading[match], secret.readings)
                floor[metric.name] = metric(blind(secret.readings), secret.readings)
        except Unscored as reason:
            unscored[metric.name] = str(reason)
    return {"scores": scores, "blind": floor, "unscored": unscored, "match": match,
            "leaked": leaked(scores, floor, metrics)}


def _event(trial: int, guess: Guess, scene: Stage, metric: Metric, seconds: float) -> dict[str, Any]:
    matched = guess.reading[assign(guess.reading, scene.secret.readings)]
    value = metric(matched, scene.secret.readings)
    return {"trial": trial, "step": guess.step, "steps": guess.steps, "seconds": round(seconds, 3),
            "residual": residual(scene.seen, guess.batch), metric.name: sum(value) / len(value)}


def _packed(guess: Guess) -> dict[str, Tensor]:
    place = {"_step": torch.tensor(guess.step), "_steps": torch.tensor(guess.steps)}
    return {**{f"state.{k}": v for k, v in guess.state.items()}, **place,
            "_x": guess.batch.x, "_y": guess.batch.y, "_reading": guess.reading}


def _resumed(saved: Mapping[str, Tensor]) -> Guess | None:
    if not saved:
        return None
    state = {k.removeprefix("state."): v for k, v in saved.items() if k.startswith("state.")}
    return Guess(Batch(saved["_x"], saved["_y"]), saved["_reading"], int(saved["_step"]), int(saved["_steps"]), state)


def rescore(cell: Cell, folder: CellDir) -> None:
    """Measure stored guesses again, with the metrics as they are now; nothing is attacked again."""
    part = cell.participation()
    trials = []
    for record in folder.trials():
        if record["failed"] is None:
            secret = cell.world().draw(cell.batch, record["trial"], part, Rng(cell.seed) / "data")
            kept = folder.guess(record["trial"])
            record = {**record, **score(cell.scorers(), kept["reading"], kept["y"], secret)}
        trials.append(record)
    folder.rewrite(trials)


