"""Whole numbers by evolution, as HF-GradInv counts labels."""

import numpy as np
import torch
from torch import Tensor

from gradleak.rng import Rng

POPULATION = 20
GENERATIONS = 200
CROSSOVER = 0.5


def evolved(amounts: Tensor, total: int, rng: Rng) -> Tensor:
    """Whole numbers, none below 1, that sum to `total` and point in the direction of the amounts.

    A population is crossed over, mutated and selected pair by pair; the first of it are the rounded amounts, the
    others random. There may be no more amounts than the total.
    """
    goal, draw = amounts.double().cpu().numpy(), rng.numpy()
    people = draw.random((POPULATION, len(goal)))
    people[0] = goal
    people = rescaled(people, total)
    fitness = _fitness(people, goal)
    for _ in range(GENERATIONS if len(goal) > 1 else 0):
        mates = (np.arange(POPULATION) + draw.integers(1, POPULATION, POPULATION)) % POPULATION
        own = draw.random(people.shape) < CROSSOVER
        children = _mutated(rescaled(np.where(own, people, people[mates]), total), draw)
        found = _fitness(children, goal)
        better = found > fitness
        people, fitness = np.where(better[:, None], children, people), np.where(better, found, fitness)
    return torch.from_numpy(people[int(fitness.argmax())]).to(amounts.device)


def rescaled(amounts: np.ndarray, total: int) -> np.ndarray:
    """Each row scaled to the total and rounded down but not below 1; the entry that lost most by it takes what is
    missing, and the largest give what is too much."""
    scaled = amounts * (total / np.maximum(amounts.sum(1, keepdims=True), 1e-30))
    whole: np.ndarray = np.maximum(np.floor(scaled), 1).astype(np.int64)
    every = np.arange(len(amounts))
    whole[every, (scaled - whole).argmax(1)] += np.maximum(total - whole.sum(1), 0)
    while (over := whole.sum(1) - total).any():
        largest = whole.argmax(1)
        whole[every, largest] -= np.minimum(over, whole[every, largest] - 1)
    return whole


def _mutated(whole: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """In each row one that may be less is one less, and another one more."""
    every = np.arange(len(whole))
    giver = np.where(whole > 1, draw.random(whole.shape), -1.0).argmax(1)
    taker = (giver + draw.integers(1, whole.shape[1], len(whole))) % whole.shape[1]
    may = whole[every, giver] > 1
    whole[every, giver] -= may
    whole[every, taker] += may
    return whole


def _fitness(people: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The cosine. The paper's is over the rows of a product of rank one: the same up to a constant."""
    lengths = np.linalg.norm(people, axis=1) * max(float(np.linalg.norm(goal)), 1e-30)
    return np.asarray(people @ goal / lengths)
