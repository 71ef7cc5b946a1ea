"""What is known about a batch while one of its sentences is looked for: which tokens may stand where, which of them
belong together, and how far a sentence is from fitting."""

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.reading import Sentence
from gradleak.attacks.exact.transport import Shares

WIDE = 96
"""Random directions of what lies outside a span that tell near from far as well as all of them."""

STARTS = 48

APART = 6
"""Of so many places one is changed at a time, where all places are surveyed together: the others stay what they were,
so that most of a sentence is in place around each change."""

WORST = 12
"""Places whose words are exchanged."""

TOGETHER = 256
"""Sentences that pass through all layers at a time."""

WELL = 1 / 4
"""A place that is nearer than this share of the worst one is left alone."""

Of = Callable[[Tensor], Tensor]
"""How far a sentence is, by how far each of its tokens is (n x L to n)."""


class Bonds(NamedTuple):
    """How strongly each two of some (token, place) pairs belong together."""

    pairs: list[tuple[int, int]]
    strength: np.ndarray


class Board:
    """Of what is left of a batch."""

    def __init__(
        self, door: Entrance, left: Left, known: Shares, bonds: Bonds, tokens: list[list[int]],
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

    def narrowed(self, left: Left, tokens: list[list[int]]) -> "Board":
        """The same for what is left after a sentence was found."""
        still = {(token, place) for place, here in enumerate(tokens) for token in here}
        kept = [number for number, pair in enumerate(self.pairs) if pair in still]
        bonds = Bonds([self.pairs[i] for i in kept], self.bonds[np.ix_(kept, kept)])
        return Board(self.door, left, self.known, bonds, tokens, self.rng)

    def lengths(self, every: bool) -> list[int]:
        """How long sentences may be, shortest first: wherever what closes one carries weight."""
        closing, shortest = self.door.vocabulary.closing, len(self.door.vocabulary.opening) + 1
        ends = [place for place, here in enumerate(self.tokens) if place >= shortest and closing[-1] in here]
        heavy = [place for place in ends if self.weight[closing[-1], place][0] > 0.02]
        return [place + 1 for place in (ends if every or not heavy else heavy)]

    def choices(self, length: int) -> list[list[int]]:
        """What may stand in each place of a sentence of that length; nothing if it cannot have that length."""
        words = self.door.vocabulary
        frame = {*words.opening, *words.closing}
        if length > len(self.tokens):
            return []
        inner = [[token for token in here if token not in frame] for here in self.tokens[:length]]
        for place, token in enumerate(words.opening):
            inner[place] = [token]
        for place, token in enumerate(words.closing):
            inner[length - len(words.closing) + place] = [token]
        return inner if all(inner) else []

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

    def surveyed(self, draft: list[int], choices: list[list[int]]) -> list[list[int]]:
        """The choices of every place, those first that lie nearest in the draft, each judged by its own token alone:
        a wrong one shows in its own place most. So many places are tried at once."""
        found = [list(here) for here in choices]
        open_ = [place for place, here in enumerate(choices) if len(here) > 1]
        for first in range(min(APART, len(open_))):
            places = open_[first::APART]
            whole = torch.tensor(draft).repeat(max(len(choices[place]) for place in places), 1)
            for place in places:
                whole[: len(choices[place]), place] = torch.tensor(choices[place])
            off = self.far(whole, "middle")
            for place in places:
                order = off[: len(choices[place]), place].argsort(stable=True).tolist()
                found[place] = [choices[place][i] for i in order]
        return found

    def judged(self, rows: Tensor) -> list[tuple[Sentence, float]]:
        """How far the worst token of each is outside the deep span, nearest first."""
        off = self.deep.off(self._reached(rows, self.witness)).amax(1)
        return sorted({tuple(row): float(far) for row, far in zip(rows.tolist(), off, strict=True)}.items(),
                      key=lambda one: one[1])

    def improved(self, drafts: Tensor, choices: list[Tensor], which: str, of: Of, sweeps: int) -> Tensor:
        """Place by place the choice with which the whole sentence fits best, all drafts side by side."""
        drafts = drafts.clone()
        off = self.far(drafts, which)
        score = of(off)
        places = [place for place, here in enumerate(choices) if here.shape[1] > 1]
        for _ in range(sweeps):
            before = score.clone()
            for place in _worst(off, places):
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
            off = self.far(drafts, which)
        return drafts

    def exchanged(self, draft: Tensor, choices: list[list[int]], of: Of) -> Tensor:
        """Two words of a draft (L) in each other's places, the best two among the places that fit worst, while that
        helps: choices one by one cannot, as a word that stands twice is worse than one that stands wrongly."""
        open_ = torch.tensor([len(here) > 1 for here in choices])
        while True:
            off = self.far(draft[None], "middle")
            worst = off[0].masked_fill(~open_, -1.0).argsort(descending=True, stable=True)
            tried = _exchanges(draft, choices, sorted(worst[: min(WORST, int(open_.sum()))].tolist()))
            if not len(tried):
                return draft
            values = of(self.far(tried, "middle"))
            best = int(values.argmin())
            if float(values[best]) >= float(of(off)) - 1e-7:
                return draft
            draft = tried[best]

    def changed(self, draft: Tensor, choices: list[list[int]], allowed: list[list[int]]) -> tuple[Tensor, float]:
        """Of all sentences with one word of a draft changed to a choice, or two exchanged where that is allowed, the
        one that lies nearest in the deep span, and how far it is."""
        open_ = [place for place, here in enumerate(allowed) if len(here) > 1]
        changes = [(place, token) for place in open_ for token in choices[place] if token != int(draft[place])]
        places, tokens = torch.tensor(changes, dtype=torch.long).reshape(-1, 2).T
        whole = draft.repeat(len(changes), 1)
        whole[torch.arange(len(changes)), places] = tokens
        whole = torch.cat([draft[None], whole, _exchanges(draft, allowed, open_)])
        off = self.far(whole, "deep").mean(1)
        return whole[int(off.argmin())], float(off.min())

    def _reached(self, sentences: Tensor, layer: str) -> Tensor:
        """What each token sends there, or where only the classified one asks, that one."""
        (reached,) = self.door.reach(sentences, layer)
        return reached[:, :1] if self.asked else reached

    def far(self, sentences: Tensor, which: str) -> Tensor:
        """How far outside the span of that layer every token of every sentence is (n x L; n x 1 where one token alone
        tells)."""
        layer = self.door.middle[0].name if which == "middle" and not self.asked else self.witness
        reached = [self._reached(some, layer).float() for some in torch.split(sentences, TOGETHER)]
        return torch.cat([(x @ self.outside[which]).square().sum(-1).sqrt() / x.square().sum(-1).sqrt()
                          for x in reached])


def _exchanges(draft: Tensor, choices: list[list[int]], places: list[int]) -> Tensor:
    """A draft (L) with the words of two of these places exchanged, every way that is a choice (n x L)."""
    tokens, allowed = draft.tolist(), [set(here) for here in choices]
    pairs = [(a, b) for a, b in combinations(places, 2)
             if tokens[a] != tokens[b] and tokens[a] in allowed[b] and tokens[b] in allowed[a]]
    one, other = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    whole, rows = draft.repeat(len(pairs), 1), torch.arange(len(pairs))
    whole[rows, one], whole[rows, other] = draft[other], draft[one]
    return whole


def _worst(off: Tensor, places: list[int]) -> list[int]:
    """The places that fit worst first, without those that fit well in all drafts: the wrong words are not there."""
    if off.shape[1] == 1 or not places:
        return places
    share = (off / off[:, places].amax(1, keepdim=True).clamp_min(1e-30)).amax(0)
    return sorted((place for place in places if float(share[place]) > WELL), key=lambda place: -float(share[place]))


def _thinned(rest: Tensor, rng: np.random.Generator) -> Tensor:
    columns = rest.shape[1]
    if columns <= WIDE:
        return rest.float()
    mix = np.linalg.qr(rng.standard_normal((columns, WIDE)))[0] * math.sqrt(columns / WIDE)
    return (rest @ torch.from_numpy(mix)).float()
