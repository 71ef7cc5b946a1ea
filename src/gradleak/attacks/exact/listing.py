"""The words that a first layer's gradient speaks for: a short list for attacks that search."""

import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.likely import hearings
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Observation


def listed(seen: Observation, lengths: Tensor) -> Tensor:
    """Per token, whether it may stand in one of the sentences; all may where the first layers do not tell.

    Words that were dropped in part, and updates with noise, gaps or more tokens than dimensions, are served too: a list
    only ranks, and proves nothing.
    """
    vocabulary = seen.vocabulary
    if vocabulary is None:
        raise Unsuited("the data are images; words are listed for text")
    try:
        search = hearings(entrance(seen), Rng(0) / "listing")[-1]
    except Unsuited:
        return vocabulary.usable
    places = range(len(vocabulary.opening), min(int(lengths.max()) - len(vocabulary.closing), search.door.places))
    if not places:
        return vocabulary.usable
    found = torch.zeros_like(vocabulary.usable)
    found[search.listed(places, max(1, search.heard.rank)).tokens] = True
    return found & vocabulary.usable
