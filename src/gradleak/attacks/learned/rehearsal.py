"""What the client would send for made-up batches, many at a time, as rows of features."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.learned.hashing import hashed
from gradleak.attacks.parts.labels import head
from gradleak.calculus import in_lanes
from gradleak.errors import Unsuited
from gradleak.lanes import REFUSALS, Lanes
from gradleak.rng import Rng
from gradleak.types import Batch, Observation, Update

ENTRIES = 1 << 24
"""Gradient entries in memory at a time."""

Extra = Mapping[str, Tensor]


class Rehearsal:
    """Plays the client on many batches, stacked along a first axis: at once if it can be taken so, else in turn."""

    def __init__(self, seen: Observation, x: Tensor, y: Tensor, extra: Extra) -> None:
        self.seen = seen
        self.at_once = Lanes(lambda batch: seen.rehearse(batch, None), x, y, extra).way == "at once"
        if self.at_once:
            try:
                self._together(x[:2], y[:2], {k: v[:2] for k, v in extra.items()}, Rng(0))
            except REFUSALS:
                self.at_once = False

    @property
    def chunk(self) -> int:
        """So many batches at a time keep memory in bounds."""
        return max(1, min(256, ENTRIES // sum(value.numel() for value in self.seen.params.values())))

    def __call__(self, x: Tensor, y: Tensor, extra: Extra, rng: Rng | None) -> Update:
        if self.at_once and len(x) > 1:
            return self._together(x, y, extra, rng)
        with torch.no_grad():
            each = [self.seen.rehearse(Batch(x[i], y[i], {k: v[i] for k, v in extra.items()}), rng / i if rng else None)
                    for i in range(len(x))]
        return {name: torch.stack([update[name] for update in each]) for name in each[0]}

    def _together(self, x: Tensor, y: Tensor, extra: Extra, rng: Rng | None) -> Update:
        names = list(extra)
        with torch.no_grad():
            return in_lanes(lambda a, b, *more: self.seen.rehearse(
                Batch(a, b, dict(zip(names, more, strict=True))), rng), x, y, *extra.values())


@dataclass(frozen=True)
class Blocks:
    """An update as one row of features, in blocks: a layer's weight or bias is one, but the last layer's rows of the
    classes at hand are another than the rest. Layers too long together are hashed, each by itself."""

    spans: tuple[tuple[str, int], ...]
    """Each block's name and number of features."""
    whole: Mapping[str, int]
    """Parameters and their entries, where they are not split."""
    head: str | None
    labels: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(size for _, size in self.spans)

    def __call__(self, stacked: Update) -> Tensor:
        return torch.cat([hashed([flat], size, signed=True) if size < flat.shape[1] else flat
                          for (_, size), flat in zip(self.spans, self._flat(stacked), strict=True)], 1)

    def _flat(self, stacked: Update) -> Iterator[Tensor]:
        for name in self.whole:
            if name != self.head:
                yield stacked[name].flatten(1)
                continue
            mine = torch.zeros(stacked[name].shape[1], dtype=torch.bool)
            mine[list(self.labels)] = True
            yield stacked[name][:, mine].flatten(1)
            yield stacked[name][:, ~mine].flatten(1)

    def slices(self) -> list[slice]:
        ends = torch.tensor([size for _, size in self.spans]).cumsum(0).tolist()
        return [slice(end - size, end) for end, (_, size) in zip(ends, self.spans, strict=True)]


def blocks(seen: Observation, labels: tuple[int, ...], most: int) -> Blocks:
    """At most about `most` features."""
    sizes = {name: value.numel() for name, value in seen.params.items()}
    try:
        last = head(seen)[0] if 0 < len(set(labels)) < seen.classes else None
    except Unsuited:
        last = None
    share = min(1.0, most / sum(sizes.values()))
    spans: list[tuple[str, int]] = []
    for name, size in sizes.items():
        if name != last:
            spans.append((name, max(1, round(size * share))))
            continue
        mine = size // seen.classes * len(set(labels))
        spans += [(f"{name} of the labels", max(1, round(mine * share))),
                  (f"{name} of others", max(1, round((size - mine) * share)))]
    return Blocks(tuple(spans), sizes, last, tuple(sorted(set(labels))))
