"""How well sentences explain a batch's early layers, by what reaches these: no gradient is replayed.

What a layer is given depends on a sentence alone, and what its gradient is made of spans the same space: the energy
that the gradients of the first few layers have in the space of what sentences bring there tells words, orders and who
stood with whom, at a tenth of a replay's cost and without any label. It guides a search; the whole update then decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.exact.arrange import Shortlist
from gradleak.attacks.exact.completion import completed, pruned
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.judge import Company
from gradleak.attacks.exact.likely import Noisy, Search, noisy
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import oriented
from gradleak.calculus import peek
from gradleak.rng import Rng
from gradleak.tap import Layer
from gradleak.types import Batch, following

TOGETHER, COMPARED, REMEMBERED = 64, 1024, 4096
"""Sentences that pass the first layers at a time, those that are compared at a time, and those of which what they bring
is remembered: some 60 KiB each for a dozen words of MiniLM."""

RIDGE, ALIKE = 1e-4, 1e-3
"""Beside the mean squared length: so that words that count once can be solved for; and beside the longest direction:
what is no direction of its own."""

FAINT = 0.02
"""A word must add this share of what words do on average, at least: where gaps were filled in, hardly any noise is
left, and more words would always explain a little more."""

LOUDEST = 1e6
"""Energy of a layer at most, in nats: more is beyond the rounding of float32."""


@dataclass(frozen=True)
class Floor:
    """A layer by name, its gradient's energy, and what a word must add to it to be more than noise."""

    layer: str
    energy: Tensor
    edge: float


class Echo:
    """Judges companies as `Judge` does, by the layers up to the second attention's."""

    def __init__(self, search: Search, pool: Tensor, tokens: int, seat: float, rng: Rng) -> None:
        """`tokens`: about how many there are; `seat`: what words add to the first layers' energy where none stood."""
        self.door, self.search, self.pool = search.door, search, pool
        share = min(1.0, seat / _loudest(search.heard, tokens))
        self.floors = [_floor(group[0].name, heard, tokens, share) for group, heard in _heard(search, rng)]
        self._rows: dict[Sentence, list[Tensor]] = {}
        self._listed: dict[int, Shortlist] = {}

    def listen(self, pool: Tensor) -> None:
        """For other words from now on."""
        self.pool, self._listed = pool, {}

    def entire(self, score: float) -> bool:
        """Never: energy has no limit that only the truth would reach."""
        return False

    def quiet(self, company: Company, score: float) -> bool:
        """Never: a few layers do not tell."""
        return False

    def companies(self, many: Sequence[Company]) -> list[float]:
        """Of whole batches; labels do not matter."""
        self._pass([sentence for each in many for sentence in each.sentences])
        return [self.instead(each, 0, each.sentences[:1])[0] for each in many]

    @torch.no_grad()
    def instead(self, company: Company, which: int, rivals: Sequence[Sentence]) -> list[float]:
        """Of a batch with each rival in a sentence's place, in nats."""
        if not rivals:
            return []
        if len(rivals) > COMPARED:
            return [*self.instead(company, which, rivals[:COMPARED]), *self.instead(company, which, rivals[COMPARED:])]
        others = [sentence for number, sentence in enumerate(company.sentences) if number != which]
        self._pass([*others, *rivals])
        counts = torch.tensor([len(rival) for rival in rivals]) + sum(map(len, others))
        total = torch.zeros(len(rivals), dtype=torch.float64)
        for number, floor in enumerate(self.floors):
            known = [self._rows[sentence][number] for sentence in others]
            rows = torch.nn.utils.rnn.pad_sequence([self._rows[rival][number] for rival in rivals], batch_first=True)
            total += (_explained(floor.energy, known, rows).cpu() - floor.edge * counts) / 2
        return total.tolist()

    def slopes(self, company: Company) -> Tensor:
        """What every word of the pool would add to the first layers' energy in every place (n x L x V)."""
        vectors = self.door.atoms.vectors(*torch.tensor(company.keys).mT)
        longest, row = max(map(len, company.sentences)), 0
        found = torch.full((len(company.sentences), longest, len(self.door.vocabulary.table)), -torch.inf)
        for number, sentence in enumerate(company.sentences):
            for place in range(len(sentence)):
                others = torch.cat([vectors[:row], vectors[row + 1 :]])
                found[number, place, self.pool] = self._at(place).gains(others).float()
                row += 1
        return found

    def _at(self, place: int) -> Shortlist:
        if place not in self._listed:
            places = torch.full_like(self.pool, place)
            vectors = self.door.atoms.vectors(self.pool, places)
            self._listed[place] = Shortlist(self.pool, places, vectors, self.search.heard.energy)
        return self._listed[place]

    def _pass(self, sentences: Sequence[Sentence]) -> None:
        """Remember what each sentence brings to the layers; of the others not too many."""
        wanted = dict.fromkeys(sentences)
        new = sorted((each for each in wanted if each not in self._rows), key=len)
        if new and len(self._rows) + len(new) > REMEMBERED:
            self._rows = {each: self._rows[each] for each in wanted if each in self._rows}
        for at in range(0, len(new), TOGETHER):
            part = new[at : at + TOGETHER]
            for sentence, rows in zip(part, _reached(self.door, part, self.floors), strict=True):
                self._rows[sentence] = rows


def _reached(door: Entrance, sentences: list[Sentence], floors: Sequence[Floor]) -> list[list[Tensor]]:
    batch, rows = door.told(sentences, torch.zeros(len(sentences), dtype=torch.long))
    if door.seen.next_word:
        batch = Batch(batch.x, following(rows), batch.extra)
    found = peek(door.seen.replay, batch, *(floor.layer for floor in floors))
    if any(each.numel() != rows.numel() * each.shape[-1] for each in found):
        # A client that takes its examples in turn was seen taking the first only.
        return [_reached(door, [sentence], floors)[0] for sentence in sentences]
    whole = [each.float().reshape(*rows.shape, -1) for each in found]
    return [[each[row, : len(sentence)].clone() for each in whole] for row, sentence in enumerate(sentences)]


def _heard(search: Search, rng: Rng) -> list[tuple[tuple[Layer, ...], Noisy]]:
    """The layers up to the second attention's that are as wide as words, where anything was sent of them."""
    door = search.door
    groups = door.groups[: door.groups.index(door.second) + 1] if door.second else door.groups[:1]
    found = []
    for group in groups:
        parts = [oriented(door.seen.update, layer) for layer in group if layer.name in door.seen.update]
        parts = [part for part in parts if part.shape[1] == door.atoms.width and bool(part.any())]
        if group == door.first:
            found.append((group, search.heard))
        elif parts:
            gaps = any(pruned(part) for part in parts)
            found.append((group, noisy(*completed(parts, rng / group[0].name)) if gaps else noisy(parts)))
    return found


def _loudest(heard: Noisy, tokens: int) -> float:
    """The energy of the loudest direction that holds no token."""
    return float(heard.axes[1][min(tokens, heard.energy.shape[0] // 2)])


def _floor(layer: str, heard: Noisy, tokens: int, share: float) -> Floor:
    """`share`: of the loudest direction without a token, what the best absent word adds."""
    scale = min(1.0, LOUDEST / float(heard.energy.trace()))
    edge = max(share * _loudest(heard, tokens), FAINT * float(heard.energy.trace()) / tokens)
    return Floor(layer, scale * heard.energy.float(), scale * edge)


def _explained(energy: Tensor, known: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The energy in the space of what is known and of each candidate's rows (K x L x d; those of zeros do not
    count)."""
    base = 0.0
    if known:
        _, sizes, axes = torch.linalg.svd(torch.cat(list(known)), full_matrices=False)
        axes = axes[sizes > ALIKE * sizes[0]]
        base = float((axes @ energy * axes).sum())
        rows = rows - (rows @ axes.mT) @ axes
    gram, seen = rows @ rows.mT, (rows @ energy) @ rows.mT
    squares = gram.diagonal(dim1=1, dim2=2)
    ridge = RIDGE * squares.sum(1) / (squares > 0).sum(1).clamp_min(1)  # of each alone: others do not change its worth
    shares: Tensor = torch.linalg.solve(gram + ridge[:, None, None] * torch.eye(rows.shape[1]).to(gram), seen)
    return base + shares.diagonal(dim1=1, dim2=2).sum(1).double()
