"""Which of the labels belongs to which sentence, once both are known."""

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.parts.labels import head


def paired(door: Entrance, sentences: list[Sentence], labels: Tensor) -> Tensor:
    """The order of the labels in which the sentences' own gradients of the last layer add up to the one seen, best;
    found by swapping two labels while that helps."""
    if len(set(labels.tolist())) == 1:
        return labels
    name, _ = head(door.seen)
    target = door.seen.update[name].double().flatten() * len(sentences)
    own = _own(door, sentences, sorted(set(labels.tolist())), name)
    order = labels.tolist()

    def off(chosen: list[int]) -> float:
        total = torch.stack([own[i, label] for i, label in enumerate(chosen)]).sum(0)
        return -float(torch.cosine_similarity(total, target, dim=0))

    best, better = off(order), True
    while better:
        better = False
        for one in range(len(order)):
            for other in range(one):
                swapped = order.copy()
                swapped[one], swapped[other] = order[other], order[one]
                value = off(swapped)
                if value < best - 1e-9:
                    order, best, better = swapped, value, True
    return torch.tensor(order)


@torch.no_grad()
def _own(door: Entrance, sentences: list[Sentence], labels: list[int], name: str) -> dict[tuple[int, int], Tensor]:
    """Every sentence's gradient of the last layer under every label."""
    return {(number, label): door.seen.replay(door.told([sentence], torch.tensor([label]))[0])[name].double().flatten()
            for number, sentence in enumerate(sentences) for label in labels}
