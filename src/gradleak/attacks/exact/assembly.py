"""From tokens per place to sentences: draft one from tokens that belong together, and improve it place by place until
everything it sends to the deeper layers lies in their spans."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.exact.affinity import Attention, affinity, attention
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.span import oriented
from gradleak.attacks.exact.transport import Shares, shares
from gradleak.rng import Rng

FITS = 2e-4
"""Every token of a true sentence reaches the deeper layers at most this far outside their span."""

WIDE = 96
"""Random directions of what lies outside a span that tell near from far as well as all of them."""

NEAR = 0.12
"""Mean distance from which a draft is worth more work."""

LENGTHS = 4
"""Drafts that are improved by every choice, where only the classified token tells."""

STARTS, DRAFTS, ROUNDS = 48, 3, 12
KEPT = 280
"""Pairs at most whose affinity is worked out."""

STALE = 1 / 4
"""The share of the remaining sentences after which what belongs together is worked out anew."""


class Assembly:
    """Looks for one sentence after the other; remembers near misses."""

    def __init__(self, door: Entrance, rng: Rng) -> None:
        self.door, self.how, self.rng = door, attention(door), rng.numpy()
        self.missed: dict[Sentence, float] = {}
        self.board: _Board | None = None
        self.fresh_at = 0

    def next(self, left: Left, tokens: list[list[int]]) -> tuple[Sentence, int] | None:
        """A sentence made of these tokens that fits and can be proven, with its label."""
        if not tokens:
            return None
        if self.board is not None and left.tokens > (1 - STALE) * self.fresh_at:
            self.board = self.board.narrowed(left, tokens)
            found = self._found(self.board, left, 2)
            if found is not None:
                return found
        known = shares(self.door.atoms, left.stack(self.door.first), tokens)
        self.board = _Board(self.door, left, known, _bonds(self.door, self.how, known), tokens, self.rng)
        self.fresh_at = left.tokens
        return self._found(self.board, left, ROUNDS)

    def _found(self, board: "_Board", left: Left, rounds: int) -> tuple[Sentence, int] | None:
        for number in range(rounds):
            for sentence, off in board.tried(number):
                label = left.prove(sentence) if off < FITS and self.missed.get(sentence) != off else None
                if label is not None:
                    return sentence, label
                self.missed[sentence] = off
        return None

    def leftovers(self, found: list[Sentence], wanted: int) -> list[Sentence]:
        """The nearest misses that are unlike each other and unlike what was found."""
        chosen: list[Sentence] = []
        for sentence in sorted(self.missed, key=lambda one: self.missed[one]):
            if len(chosen) < wanted and all(_alike(sentence, other) < 0.7 for other in (*found, *chosen)):
                chosen.append(sentence)
        return chosen


def _alike(one: Sentence, other: Sentence) -> float:
    return sum(a == b for a, b in zip(one, other, strict=False)) / max(len(one), len(other))


class _Bonds(NamedTuple):
    """How strongly each two of some (token, place) pairs belong together."""

    pairs: list[tuple[int, int]]
    strength: np.ndarray


def _bonds(door: Entrance, how: Attention, known: Shares) -> _Bonds:
    """Of the pairs that carry weight."""
    size = known.deltas.norm(dim=1)
    heavy = (known.of_token > 0.10) | (known.of_place > 0.06)
    kept = [i for i in size.argsort(descending=True).tolist() if bool(heavy[i])][:KEPT]
    pairs = [known.pairs[i] for i in kept]
    deltas = known.deltas[kept] / size[kept][:, None].clamp_min(1e-300)
    x = door.atoms.vectors(torch.tensor([t for t, _ in pairs]), torch.tensor([p for _, p in pairs]))
    parts = deltas.split([len(oriented(door.seen.update, layer)) for layer in door.first], 1)
    query, key = (parts[door.first.index(layer)] for layer in (how.query, how.key))
    return _Bonds(pairs, affinity(door, x, query, key, how).numpy())


class _Drafts(NamedTuple):
    """Sentences of one length, what may stand in each place, and how far the best of them is from fitting."""

    rows: Tensor
    choices: list[list[int]]
    best: float


class _Board:
    """What is known about a batch while one of its sentences is looked for."""

    def __init__(
        self, door: Entrance, left: Left, known: Shares, bonds: _Bonds, tokens: list[list[int]],
        rng: np.random.Generator,
    ) -> None:
        self.door, self.known, self.tokens, self.rng = door, known, tokens, rng
        self.deep, self.witness, self.asked = left.deep, left.witness[0].name, left.asked
        self.outside = {"middle": _thinned(left.middle.rest, rng), "deep": _thinned(left.deep.rest, rng)}
        # A pair that was out when weights were worked out may be in again, just so: it has none.
        self.weight = defaultdict(lambda: (0.0, 0.0), {
            pair: (float(a), float(b)) for pair, a, b
            in zip(known.pairs, known.of_token, known.of_place, strict=True)})
        self.pairs, self.bonds = bonds
        self.number = {pair: number for number, pair in enumerate(self.pairs)}

    def narrowed(self, left: Left, tokens: list[list[int]]) -> "_Board":
        """The same for what is left after a sentence was found."""
        still = {(token, place) for place, here in enumerate(tokens) for token in here}
        kept = [number for number, pair in enumerate(self.pairs) if pair in still]
        bonds = _Bonds([self.pairs[i] for i in kept], self.bonds[np.ix_(kept, kept)])
        return _Board(self.door, left, self.known, bonds, tokens, self.rng)

    def lengths(self, every: bool) -> list[int]:
        """How long sentences may be, shortest first: wherever what closes one carries weight."""
        closing, shortest = self.door.vocabulary.closing, len(self.door.vocabulary.opening) + 1
        ends = [place for place, here in enumerate(self.tokens) if place >= shortest and closing[-1] in here]
        heavy = [place for place in ends if self.weight[closing[-1], place][0] > 0.02]
        return [place + 1 for place in (ends if every or not heavy else heavy)]

    def choices(self, length: int) -> list[list[int]]:
        """What may stand in each place of a sentence of that length."""
        words = self.door.vocabulary
        frame = {*words.opening, *words.closing}
        inner = [[token for token in here if token not in frame] for here in self.tokens[:length]]
        for place, token in enumerate(words.opening):
            inner[place] = [token]
        for place, token in enumerate(words.closing):
            inner[length - len(words.closing) + place] = [token]
        return inner

    def tried(self, number: int) -> Iterator[tuple[Sentence, float]]:
        """Sentences with how far they are from fitting: drafts as they are, then improved a little, then, of those
        that came near, improved a lot. The lengths whose drafts fit best come first."""
        found = (self.drafts(length) for length in self.lengths(every=number % 6 == 5))
        drafts = sorted((few for few in found if few is not None), key=lambda few: few.best)
        for few in drafts:
            yield from self.judged(few.rows)
        ranked = [[self.ranked(row, few.choices) for row in few.rows.tolist()] for few in drafts]
        of = _OF[number % len(_OF)]
        better = []
        for few, ranks in zip(drafts, ranked, strict=True):
            sweeps = 2 if self.asked else 4
            better.append(self.improved(few.rows, _cut(ranks, 12 if number < 4 else 24), "middle", of, sweeps))
            yield from self.judged(better[-1])
        if self.asked:
            yield from self.polished(better, ranked)
            return
        for rows, ranks in zip(better, ranked, strict=True):
            near = self.far(rows, "deep").mean(1)
            hopeful = [i for i in range(len(rows)) if FITS < near[i] < NEAR]
            if hopeful:
                ranks = [ranks[i] for i in hopeful]
                polished = self.improved(rows[hopeful], _cut(ranks, 60), "middle", _mean, 2)
                yield from self.judged(self.improved(polished, _cut(ranks, 16), "deep", _mean, 2))

    def polished(self, better: list[Tensor], ranked: list[list[list[list[int]]]]) -> Iterator[tuple[Sentence, float]]:
        """Where only the classified token tells, little shows which words are wrong: of some lengths the nearest draft,
        improved by every choice there is."""
        near = []
        for number, rows in enumerate(better):
            off = self.far(rows, "deep").mean(1)
            near.append((float(off.min()), number, int(off.argmin())))
        for _, number, row in sorted(near)[:LENGTHS]:
            choices = _cut(ranked[number][row : row + 1], len(self.known.pairs))
            yield from self.judged(self.improved(better[number][row, None], choices, "deep", _mean, 2))

    def drafts(self, length: int) -> "_Drafts | None":
        """The few best of many starts."""
        choices = self.choices(length)
        if not all(choices):
            return None
        starts = self.starts(length, choices)
        far = self.far(starts, "deep").mean(1)
        return _Drafts(starts[far.argsort()[:DRAFTS]], choices, float(far.min()))

    def judged(self, rows: Tensor) -> list[tuple[Sentence, float]]:
        """How far the worst token of each is outside the deep span, nearest first."""
        off = self.deep.off(self._reached(rows, self.witness)).amax(1)
        return sorted({tuple(row): float(far) for row, far in zip(rows.tolist(), off, strict=True)}.items(),
                      key=lambda one: one[1])

    def starts(self, length: int, choices: list[list[int]]) -> Tensor:
        """Drafts grown from one token by what belongs to those chosen so far, a little at random."""
        allowed = [set(here) for here in choices]
        places = np.array([place for _, place in self.pairs])
        tokens = np.array([token for token, _ in self.pairs])
        weights = np.array([self.weight[pair][0] for pair in self.pairs])
        free = np.array([place < length and len(choices[place]) > 1 and token in allowed[place]
                         for token, place in self.pairs])
        fixed = [n for n, (token, place) in enumerate(self.pairs)
                 if 0 < place < length and len(choices[place]) == 1 and token in allowed[place]]
        found = set()
        for _ in range(STARTS):
            draft = [here[int(self.rng.integers(min(4, len(here))))] for here in choices]
            total = self.bonds[:, fixed].sum(1) if fixed else np.full(len(self.pairs), 1e-9)
            jitter, open_ = (1 + 2 * weights) * self.rng.uniform(0.75, 1.25, len(weights)), free.copy()
            chance = np.where(open_, weights**1.5 + 1e-6, 0)
            pick = int(self.rng.choice(len(chance), p=chance / chance.sum())) if open_.any() else -1
            while open_.any():
                draft[places[pick]] = int(tokens[pick])
                open_ &= places != places[pick]
                total = total + self.bonds[:, pick]
                pick = int(np.where(open_, total * jitter, -1).argmax())
            found.add(tuple(draft))
        return torch.tensor(sorted(found))

    def ranked(self, draft: list[int], choices: list[list[int]]) -> list[list[int]]:
        """The choices of every place, those first that carry weight and belong to the draft."""
        mine = [self.number[token, place] for place, token in enumerate(draft)
                if place and (token, place) in self.number]
        bond = self.bonds[:, mine].mean(1) if mine else np.zeros(len(self.pairs))
        most = bond.max(initial=0) + 1e-9

        def value(token: int, place: int) -> float:
            near = bond[self.number[token, place]] / most if (token, place) in self.number else 0.0
            return -(sum(self.weight[token, place]) + 1.5 * near)

        return [[token for _, token in sorted((value(token, place), token) for token in here)]
                for place, here in enumerate(choices)]

    def improved(self, drafts: Tensor, choices: list[Tensor], which: str, of: "Of", sweeps: int) -> Tensor:
        """Place by place the choice with which the whole sentence fits best, all drafts side by side."""
        drafts = drafts.clone()
        off = self.far(drafts, which)
        score = of(off)
        places = [place for place, here in enumerate(choices) if here.shape[1] > 1]
        order = sorted(places, key=lambda place: -float(off[:, place if off.shape[1] > 1 else 0].mean()))
        for _ in range(sweeps):
            before = score.clone()
            for place in order:
                many = choices[place].shape[1]
                whole = drafts[:, None].repeat(1, many, 1)
                whole[:, :, place] = choices[place]
                values = of(self.far(whole.flatten(0, 1), which)).view(len(drafts), many)
                best = values.argmin(1)
                lanes = torch.arange(len(drafts))
                wins = values[lanes, best] < score - 1e-7
                drafts = torch.where(wins[:, None], whole[lanes, best], drafts)
                score = torch.where(wins, values[lanes, best], score)
            if bool((score == before).all()):
                break
            order = [places[i] for i in self.rng.permutation(len(places))]
        return drafts

    def _reached(self, sentences: Tensor, layer: str) -> Tensor:
        """What each token sends there, or where only the classified one asks, that one."""
        (reached,) = self.door.reach(sentences, layer)
        return reached[:, :1] if self.asked else reached

    def far(self, sentences: Tensor, which: str) -> Tensor:
        """How far outside the span of that layer every token of every sentence is (n x L)."""
        layer = self.door.middle[0].name if which == "middle" and not self.asked else self.witness
        x = self._reached(sentences, layer).float()
        return (x @ self.outside[which]).square().sum(-1).sqrt() / x.square().sum(-1).sqrt()


Of = Callable[[Tensor], Tensor]


def _mean(off: Tensor) -> Tensor:
    return off.mean(1)


_OF: tuple[Of, ...] = (lambda off: off.square().mean(1), _mean, lambda off: off.sqrt().mean(1))


def _thinned(rest: Tensor, rng: np.random.Generator) -> Tensor:
    columns = rest.shape[1]
    if columns <= WIDE:
        return rest.float()
    mix = np.linalg.qr(rng.standard_normal((columns, WIDE)))[0] * math.sqrt(columns / WIDE)
    return (rest @ torch.from_numpy(mix)).float()


def _cut(ranked: list[list[list[int]]], most: int) -> list[Tensor]:
    """Per place the first choices of every draft (drafts x choices)."""
    return [torch.tensor([draft[place][:most] for draft in ranked]) for place in range(len(ranked[0]))]
