"""What a decoder read, and how sure it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

Sentence = tuple[int, ...]
"""Tokens with the frame around them."""


@dataclass(frozen=True)
class Reading:
    """Sentences, longest evidence first. `certain` says per sentence and token whether it is proven (a certificate)
    or only likely; `labels` per sentence where the decoder found them out, `notes` figures for the report. A search
    that is `open` may find better ones; it has taken so many turns, and goes on from its `state`."""

    sentences: Sequence[Sentence]
    certain: Sequence[Sequence[bool]]
    labels: Sequence[int] | None = None
    notes: Mapping[str, float] = field(default_factory=dict)
    open: bool = False
    turns: int = 0
    state: Mapping[str, Tensor] = field(default_factory=dict)
