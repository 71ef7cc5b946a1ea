"""What makes a low leak worthless: each check returns a sentence when it fires."""

import math
from collections.abc import Collection, Iterator

import torch

from gradleak.probe import probe
from gradleak.residual import Residual, norm
from gradleak.rng import Rng
from gradleak.threats import PROTOCOL, Threat
from gradleak.types import Guess, Observation, Replay, Update
from gradleak.world.clients import Participation
from gradleak.world.learner import Learner

EXACT = 1e-4
"""A replay of the truth that is further than this from the update does not replay the client (cosine distance)."""

FAINT = 1e-3
"""An update shorter than this share of what random inputs give says next to nothing about its data."""


DEAD = 0.5
"""With fewer layers than this share sending anything, most of the model says nothing about its data."""


def finite(update: Update) -> bool:
    return all(bool(value.isfinite().all()) for value in update.values())


def before(update: Update, strength: float, typical: float, alive: float = 1.0) -> Iterator[str]:
    """Is there anything to find? `strength` is the length of the update before any defense, `alive` the share of its
    layers that hold anything."""
    if not finite(update):
        yield "the update holds NaN or infinite values: the client's training has diverged; lower its rate"
    elif strength < FAINT * typical:
        yield (f"the update is nearly zero (length {strength:.1e}, {strength / max(typical, 1e-30):.1e} of what random "
               "inputs give): the model is already sure of this batch; audit batches of higher loss with draw=loss")
    elif alive < DEAD:
        yield (f"{1 - alive:.0%} of the layers send nothing but zeros before any defense: dead or detached units; "
               "check the model's weights, or audit batches of higher loss with draw=loss")


def typical_length(replay: Replay, seen: Observation, count: int, rng: Rng) -> float:
    """Length of the update that random examples with random labels would give."""
    with torch.no_grad():
        return norm(replay(probe(seen, count, rng)))


def replay_of_truth(truth: Residual, exact: bool, learner: Learner) -> Iterator[str]:
    """Where nothing is random and the defense is known, the truth must explain the update perfectly."""
    if not exact or (truth.cosine <= EXACT and math.isfinite(truth.cosine)):
        return
    hint = "BatchNorm is in the model: check mode=train or eval" if learner.norms else "check the client it assumes"
    yield f"the attacker's replay does not reproduce the client (the truth is {truth.cosine:.1e} away, not 0): {hint}"


def cautions(learner: Learner, client: Participation, random: bool, truth: Residual) -> Iterator[str]:
    """What a reader must know about the client; none of it makes a number wrong."""
    if random:
        yield (f"the client draws at random (dropout, or the order of its examples) and the attacker is not told: HELD "
               f"then means as far off as the truth, {_rounded(truth.cosine)}, no more; where masks can be told, "
               "+dropout grants them")
    if learner.norms and getattr(client, "mode", "") == "train":
        yield ("BatchNorm normalises by the batch itself (mode=train): with mode=eval the same data give another "
               "update; audit the mode you train in")


def _rounded(value: float) -> str:
    """To one digit, so that trials say it alike where they are alike."""
    return f"{value:.0e}"


def after(guess: Guess) -> Iterator[str]:
    """Did the attack do what it says?"""
    if not bool(guess.reading.isfinite().all()) or guess.notes.get("lanes_lost") == 1.0:
        yield "the search diverged to NaN from every start: give the attack a lower rate"
    if guess.notes.get("lane_spread") == 0.0:
        yield "all restarts ended in the same point to the last bit: they were not independent"


def idle(threat: Threat, granted: Collection[str], unused: Collection[str]) -> Iterator[str]:
    """Knowledge that went to waste: a low leak then says nothing about an attacker who has it."""
    left = {know.value for know in threat.knows - PROTOCOL} & set(unused) & set(granted)
    if left:
        yield f"granted but unused knowledge: {', '.join(sorted(left))}; use an attack that uses it"


def overtaken(strong: str, weak: str) -> str:
    return (f"{weak}, the weaker attack, reads more than {strong}: the stronger search went wrong here; give it more "
            "steps or time, and do not read its silence as safety")
