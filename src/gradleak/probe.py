"""Plausible data made up: what an update of this kind of model looks like when it hides nothing in particular."""

import torch

from gradleak.rng import Rng
from gradleak.types import Batch, Observation, Vocabulary, following

LENGTH = 12
"""Tokens of a made-up sentence, where the model reads as many."""


def probe(seen: Observation, count: int, rng: Rng) -> Batch:
    """Random images, or framed sentences of random words, with random labels, as different as can be."""
    like = next(iter(seen.params.values())).detach()
    if seen.vocabulary is not None:
        return _sentences(seen, seen.vocabulary, count, rng)
    return Batch((rng / "images").uniform((count, *seen.shape), like), _labels(seen, count, rng).to(like.device))


def _labels(seen: Observation, count: int, rng: Rng) -> torch.Tensor:
    return (rng / "labels").permutation(max(count, seen.classes))[:count] % seen.classes


def _sentences(seen: Observation, words: Vocabulary, count: int, rng: Rng) -> Batch:
    length = min(seen.shape[0], LENGTH)
    usable = words.usable.nonzero().flatten()
    picks = torch.randint(len(usable), (count, length), generator=(rng / "words").torch())
    tokens = usable[picks.to(usable.device)]
    tokens[:, : len(words.opening)] = torch.tensor(words.opening, dtype=tokens.dtype)
    if words.closing:
        tokens[:, -len(words.closing) :] = torch.tensor(words.closing, dtype=tokens.dtype)
    y = following(tokens) if seen.next_word else _labels(seen, count, rng)
    return Batch(words.table[tokens], y, {"mask": torch.ones_like(tokens), "ids": tokens})
