"""What anyone could have beside the private data: never one of the private examples themselves."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.types import NOTHING, Public, Vocabulary


def marked(examples: Iterable[Tensor]) -> list[bytes]:
    """A mark an example, the same for the same content; pixels are compared as bytes."""
    whole = [(x * 255).round().byte() if x.is_floating_point() else x for x in examples]
    return [hashlib.blake2b(x.contiguous().numpy().tobytes(), digest_size=16).digest() for x in whole]


def set_apart(marks: Sequence[bytes], count: int, rng: Rng) -> tuple[Tensor, Tensor]:
    """Numbers of so many examples to make public, and of those that stay private; twins of public ones are neither."""
    if not 0 < count < len(marks):
        raise UsageError(f"public = {count}: between 1 and {len(marks) - 1} of these {len(marks)} examples can be set "
                         "apart; name other data, or fewer")
    order = rng.permutation(len(marks))
    known = {marks[n] for n in order[:count].tolist()}
    private = [n for n in range(len(marks)) if marks[n] not in known]
    if not private:
        raise UsageError(f"public = {count}: no example would be left that is not public; name fewer")
    return order[:count], torch.tensor(private)


def refuse_overlap(public: Sequence[bytes], private: Sequence[bytes], name: str) -> None:
    """An attacker who holds the private examples proves nothing."""
    there = {mark: number for number, mark in enumerate(private)}
    both = [(n, there[mark]) for n, mark in enumerate(public) if mark in there]
    if both:
        raise UsageError(f"{name}: {len(both)} of its {len(public)} examples are private ones too (its number "
                         f"{both[0][0]} is number {both[0][1]}): the attacker would be handed the truth; take them out")


def frequencies(public: Public, vocabulary: Vocabulary) -> Tensor:
    """How often each token stands in public sentences, as shares that sum to 1."""
    counts = torch.bincount(public.readings[public.readings != NOTHING], minlength=len(vocabulary.table))
    return counts.float() / counts.sum()
