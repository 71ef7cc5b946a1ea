"""Which of the labels belongs to which sentence, once both are known."""

from collections.abc import Callable
from functools import cache
from itertools import combinations, product

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.judge import MANY
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.parts.labels import head
from gradleak.types import Know

ENTIRE = 1e-6
"""The cosine distance up to which only rounding is left between what labelled sentences give and what was seen."""

Labelling = tuple[int, ...]


def paired(door: Entrance, sentences: list[Sentence], labels: Tensor) -> Tensor:
    """The order of the labels in which the sentences' own gradients of the last layer add up to the one seen, best.
    Labels that were counted, not told, may have been counted wrongly: others are taken if they alone explain the layer
    entirely."""
    seen, told = door.seen, isinstance(door.seen.facts.get(Know.LABELS), Tensor)
    if told and len(set(labels.tolist())) == 1:  # then no layer is needed that tells
        return labels
    name, _ = head(seen)
    target = seen.update[name].double().flatten() * len(sentences)

    @cache
    @torch.no_grad()
    def own(number: int, label: int) -> Tensor:
        return seen.replay(door.told([sentences[number]], torch.tensor([label]))[0])[name].double().flatten()

    def off(chosen: Labelling) -> float:
        total = torch.stack([own(number, label) for number, label in enumerate(chosen)]).sum(0)
        return 1 - float(torch.cosine_similarity(total, target, dim=0))

    counted = _improved(tuple(labels.tolist()), off, exchanged)
    if told or off(counted) <= ENTIRE:
        return torch.tensor(counted)
    other = _improved(counted, off, lambda order: [*exchanged(order), *altered(order, seen.classes)])
    return torch.tensor(other if off(other) <= ENTIRE else counted)


def _improved(
    order: Labelling, off: Callable[[Labelling], float], near: Callable[[Labelling], list[Labelling]],
) -> Labelling:
    """The best of those near, while one is better."""
    while tried := near(order):
        best = min(tried, key=off)
        if off(best) >= off(order) - 1e-9:
            break
        order = best
    return order


def exchanged(order: Labelling) -> list[Labelling]:
    """With two labels in each other's places."""
    pairs = [(one, other) for one, other in combinations(range(len(order)), 2) if order[one] != order[other]]
    return [tuple(order[{one: other, other: one}.get(n, n)] for n in range(len(order))) for one, other in pairs]


def altered(order: Labelling, classes: int) -> list[Labelling]:
    """With another label in one place, of so many classes or the first of many."""
    return [(*order[:number], label, *order[number + 1 :])
            for number, label in product(range(len(order)), range(min(classes, MANY))) if label != order[number]]
