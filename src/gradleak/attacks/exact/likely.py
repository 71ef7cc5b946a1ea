"""The likeliest sentence, where noise, rounding or pruning has filled the space that a clean update leaves empty.

Nothing is proven here. The first layers' gradients are the words' vectors mixed in ways unknown, plus noise: of all
sentences the likeliest is the one whose vectors hold the most of the gradients' energy. That judges very many
sentences cheaply. The few it likes best are replayed, and the whole update decides.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.exact.arrange import Arranged, Arranging, Shortlist, reordered
from gradleak.attacks.exact.completion import completed, pruned
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.judge import Judge, Single, alone
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.span import triangle
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Know

AXES = 64
"""Directions looked at when the whole vocabulary is scored: those with the most energy."""

LISTED = 64
"""Tokens each score puts on a place's shortlist."""

LENGTHS = 3
"""Lengths tried at first, best closing first."""

LADDER, STRIDES = (6, 8, 11, 15, 20, 27), (3, 2, 1, 1)
"""Lengths tried where the first layers do not tell them, and how far around the best they are tried again."""

RIVALS = 3
"""Tokens a place that are replayed in a round, by energy and again by slope."""

ORDERS = 6
"""Other orders, sentences with a word less, and with a word more, that are replayed in a round."""

HEARD = 1.15
"""What the best of many absent words adds, beside the energy that noise has in a direction."""

FREQUENT = 0.15
"""The share of a vocabulary that nearly all words of a text are from: tokenizers number tokens by how frequent they
are."""

LITTLE = 1e-2
"""The share of a vector beyond those known at least: less is hardly another."""

CHANCE = 20.0
"""Nats by which one of the many sentences tried may seem likelier by luck."""

ROUNDS = 12
"""Of replaying, while something is better; one or two are usual."""


@dataclass(frozen=True)
class Noisy:
    """Gradients with one input, `stack` below each other (m x d), in units of their noise; `rank` of their directions
    stand out of it."""

    stack: Tensor
    rank: int
    doubt: float = 0.0
    """How wrong entries are that were not seen but filled in, beside their size."""

    @cached_property
    def energy(self) -> Tensor:
        """Squared length in every direction, as a quadratic form; doubt is noise that lies evenly."""
        energy = self.stack.mT @ self.stack
        level = self.doubt**2 * energy.trace() / len(energy)
        return energy + level * torch.eye(len(energy)).to(energy)

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor]:
        """Directions by falling energy (columns), and that energy."""
        values, vectors = torch.linalg.eigh(self.energy)
        return vectors.flip(1), values.flip(0).clamp_min(0)

    @cached_property
    def floor(self) -> Tensor:
        """The energy of a direction with nothing in it."""
        values = self.axes[1]
        return values[len(values) // 2 :].mean() + 1e-12 * values[0]

    @cached_property
    def level(self) -> float:
        """The energy that noise has in a direction, as far as can be told apart from words."""
        values = self.axes[1]
        return float(values[min(self.rank, len(values) // 2) :].mean())

    def weights(self, rank: int) -> Tensor:
        """Three ways to score the first axes by their energy: whether they stand out, how sure it is that they do, and
        how far they do."""
        values = self.axes[1][:AXES]
        inside = (torch.arange(len(values)) < rank).double()
        above = (values - self.floor).clamp_min(0)
        return torch.stack([inside, above / values.clamp_min(1e-300), above], 1)


def noisy(parts: Sequence[Tensor], doubt: float = 0.0) -> Noisy:
    """Layers weighed by how little noise they carry, which is what lies outside the directions they share."""
    sent = [(part != 0).sum().clamp_min(1).sqrt() for part in parts]
    parts = [part / part.norm().clamp_min(1e-300) * size for part, size in zip(parts, sent, strict=True)]
    rank = 0
    for _ in range(3):
        stack = torch.cat(parts)
        _, values, axes = torch.linalg.svd(triangle(stack))
        rank = risen(values, len(stack))
        rest = axes[min(rank, len(axes) // 4) :]
        noise = [(part @ rest.mT).norm() / size + 1e-9 * part.norm() for part, size in zip(parts, sent, strict=True)]
        parts = [part / level for part, level in zip(parts, noise, strict=True)]
    stack = torch.cat(parts)
    if doubt:  # what was filled in has no noise of its own to stand out of
        rank = int((torch.linalg.svdvals(stack) > doubt * stack.norm() / stack.shape[1] ** 0.5).sum())
    return Noisy(stack, rank, doubt)


def risen(values: Tensor, rows: int) -> int:
    """How many singular values of a matrix with so many rows stand above the edge that pure noise would reach."""
    rank, width = 0, len(values)
    while rank < width:
        noise = float(values[rank:].square().mean().sqrt()) / rows**0.5
        above = int((values > noise * (rows**0.5 + (width - rank) ** 0.5)).sum())
        if above <= rank:
            break
        rank = above
    return rank


def read(door: Entrance, rng: Rng) -> Reading:
    """One sentence, its length found out unless it was told."""
    judge, searches = Judge(door), hearings(door, rng)
    search, start, label = begun(searches, judge)
    sentence, margins = settled(search, judge, start, label)
    score = judge([sentence], label)[0]
    margin = min(margins.values(), default=max(0.0, score - judge.most))
    notes = {"rank": float(search.heard.rank), "likelihood": score, "margin": margin,
             "noise_alone": float(judge.quiet(alone(sentence, label), score)),
             **{f"margin {p}": value for p, value in margins.items()}}
    return Reading([sentence], [[False] * len(sentence)], None if label is None else [label], notes)


def begun(searches: "list[Search]", judge: Single) -> "tuple[Search, Sentence, int | None]":
    """Where to begin, and the label: of the likeliest lengths the one that replays best. Where entries were left out
    the first layers hardly tell lengths; then many are tried, and those near the best."""
    last = searches[-1]  # gaps look like words wherever one looks: completed, they do not
    lengths, gaps = last.lengths(), len(searches) > 1 and last.told is None
    more = [length for length in LADDER if gaps and last.possible(length) and length not in lengths]
    found: list[tuple[float, int | None, Search, Sentence]] = []
    for search, length in [(search, n) for several in (lengths, more) for search in searches[::-1] for n in several]:
        start = search.arranging(length).best().sentence
        label, score = judge.first(start)
        found.append((score, label, search, start))
        if judge.entire(score):
            break
    score, label, search, start = max(found, key=lambda one: one[0])
    for stride in STRIDES if gaps and not judge.entire(score) else ():
        near = [length for length in (len(start) - stride, len(start) + stride) if search.possible(length)]
        others = [search.arranging(length).best().sentence for length in near]
        score, start = max([(score, start), *zip(judge(others, label), others, strict=True)])
    return search, start, label


def hearings(door: Entrance, rng: Rng, longest: int | None = None) -> "list[Search]":
    """In the first layers' gradients as they were sent; and completed, where entries were left out."""
    if door.atoms.placeless:
        raise Unsuited("a word looks the same in all places of this model; here models are read whose places "
                       "differ (BERT, RoBERTa, GPT-2)")
    if not door.sent:
        raise Unsuited("nothing was sent of the first layers: compression left none of their entries; match what was "
                       "sent instead: lamp, tag")
    found = [noisy(door.sent)]
    if any(pruned(part) for part in door.sent):
        found.append(noisy(*completed(door.sent, rng / "held out")))
    return [Search(door, heard, longest) for heard in found]


class Search:
    """Sentences by the first layers alone, none longer than `longest`."""

    def __init__(self, door: Entrance, heard: Noisy, longest: int | None = None) -> None:
        self.door, self.heard = door, heard
        self.opening, self.closing = door.vocabulary.opening, door.vocabulary.closing
        self.told = door.seen.facts.get(Know.LENGTHS)
        longest = int(self.told.max()) if isinstance(self.told, Tensor) else longest
        self.longest = min(door.places, longest or door.places)
        self._along = door.atoms.along(heard.axes[0][:, :AXES])
        self._lists: dict[int, tuple[Tensor, Tensor]] = {}

    def told_of(self, lengths: Iterable[int]) -> "Search":
        """The same as if such lengths had been told."""
        other = copy(self)
        other.told = torch.tensor(list(lengths))
        return other

    def possible(self, length: int) -> bool:
        return len(self.opening) + len(self.closing) < length <= self.longest

    def lengths(self) -> list[int]:
        """As told, or the likeliest few."""
        return [int(self.told.flatten()[0])] if isinstance(self.told, Tensor) else self.ends(LENGTHS)

    def ends(self, wanted: int) -> list[int]:
        """So many lengths at which the closing tokens fit best, or where nothing closes, about as many as directions
        stand out."""
        # Noise may hide words, but hardly most of them.
        most = min(self.longest, 2 * self.heard.rank + 8)
        possible = torch.tensor([n for n in range(most + 1) if self.possible(n)])
        axes, values = self.heard.axes
        fits = -(possible - self.heard.rank).abs().double() if not self.closing else torch.zeros(len(possible))
        for back, token in enumerate(reversed(self.closing)):
            places = possible - 1 - back
            along = (self.door.atoms.vectors(torch.full_like(places, token), places) @ axes).square()
            # A vector that is there has no part in an empty direction: Capon's filter.
            emptiness = along / along.sum(1, keepdim=True) @ (1 / (values + 0.01 * self.heard.floor))
            fits = fits - emptiness.log()
        return possible[fits.topk(min(wanted, len(fits))).indices].tolist()

    def _list(self, place: int, rank: int) -> tuple[Tensor, Tensor]:
        """The tokens that may stand there, and their vectors."""
        if place not in self._lists:
            weights = self.heard.weights(rank).float()
            scores = self._along(place).square() @ weights / self.door.atoms.squares(place)[:, None]
            usable = self.door.vocabulary.usable
            scores[~usable] = -torch.inf
            tokens = torch.unique(scores.topk(min(LISTED, int(usable.sum())), dim=0).indices)
            self._lists[place] = tokens, self.door.atoms.vectors(tokens, torch.full_like(tokens, place))
        return self._lists[place]

    def listed(self, places: range, rank: int) -> Shortlist:
        """The tokens that may stand in some places, where about so many directions are words."""
        lists = [self._list(place, rank) for place in places]
        tokens, vectors = (torch.cat(parts) for parts in zip(*lists, strict=True))
        at = torch.cat([torch.full_like(part, place) for (part, _), place in zip(lists, places, strict=True)])
        return Shortlist(tokens, at, vectors, self.heard.energy)

    def called(self, known: Tensor, places: range, most: int) -> dict[int, list[int]]:
        """The tokens that would add the most energy in each place, beside known vectors; so many of all, and so many of
        the frequent ones."""
        axes = torch.linalg.qr(known.mT).Q
        pressed = self.heard.energy - axes @ (axes.mT @ self.heard.energy)
        held, along = self.door.atoms.forms(pressed - (pressed @ axes) @ axes.mT), self.door.atoms.along(axes)
        usable = self.door.vocabulary.usable.nonzero()[:, 0]
        found, frequent = {}, max(1, round(FREQUENT * len(usable)))
        for place in places:
            fresh = self.door.atoms.squares(place) - along(place).square().sum(1)
            gains = (held(place) / fresh.clamp_min(LITTLE * self.door.atoms.squares(place)))[usable]
            top = torch.cat([part.topk(min(most, len(part))).indices for part in (gains, gains[:frequent])])
            found[place] = list(dict.fromkeys(usable[top].tolist()))
        return found

    def arranging(self, length: int) -> Arranging:
        listed = self.listed(range(len(self.opening), length - len(self.closing)), max(1, min(self.heard.rank, length)))
        return Arranging(listed, length, self.opening, self.closing, self.door.atoms)


Change = tuple[int, int]
"""A place, and the token that shall stand there."""


def settled(search: Search, judge: Single, sentence: Sentence, label: int | None) -> tuple[Sentence, dict[int, float]]:
    """The sentence changed while the whole update is likelier so; and by how much, in the end, the word of each place
    is likelier than any other tried there, unless nothing is left to explain."""
    now, margins = judge([sentence], label)[0], dict[int, float]()
    for _ in range(ROUNDS):
        if judge.entire(now):
            return sentence, {}
        arranging = search.arranging(len(sentence))
        changes = _rivals(arranging, judge, sentence, label)
        scores = judge([changed(sentence, [change]) for change in changes], label)
        best: dict[int, tuple[float, Change]] = {}
        for score, change in zip(scores, changes, strict=True):
            best[change[0]] = max(best.get(change[0], (score, change)), (score, change))
        margins = {place: now - score for place, (score, _) in sorted(best.items())}
        helping = [change for score, change in sorted(best.values(), reverse=True) if score > now + CHANCE]
        together = [changed(sentence, helping[: n + 1]) for n in range(len(helping))]
        others = [together, arranging.moves(sentence, ORDERS)]
        if search.told is None and not helping:
            others += [_fewer(search, sentence), _more(search, sentence)]
        score, better = _best(judge, label, others, (now, sentence))
        if score <= now + CHANCE:  # the first layers know of nothing better: every exchange, every other place
            groups = [reordered(sentence, arranging.inside)]
            if search.told is None:
                groups += [_fewer(search, sentence, None), _more(search, sentence, None), _again(search, sentence)]
            score, better = _best(judge, label, groups, (now, sentence))
        if score <= now + CHANCE:
            break
        sentence, now = better, score
    return sentence, margins


def _rivals(arranging: Arranging, judge: Single, sentence: Sentence, label: int | None) -> list[Change]:
    """For every place the other tokens that the first layers, and the slope of the likelihood, favour most."""
    slope = judge.slope(sentence, label)
    found = dict[Change, None]()
    for place in arranging.inside:
        rows = arranging.listed.at(place)
        gains = arranging.listed.gains(arranging.others(sentence, place), rows)
        ranked = arranging.listed.tokens[rows][gains.argsort(descending=True)], slope[place].argsort(descending=True)
        for tokens in ranked:
            others = [t for t in tokens[: RIVALS + 1].tolist() if t != sentence[place]]
            found.update(dict.fromkeys((place, token) for token in others[:RIVALS]))
    return list(found)


def changed(sentence: Sentence, changes: Sequence[Change]) -> Sentence:
    """With other tokens in some places."""
    tokens = list(sentence)
    for place, token in changes:
        tokens[place] = token
    return tuple(tokens)


def _best(
    judge: Single, label: int | None, groups: Sequence[list[Sentence]], now: tuple[float, Sentence],
) -> tuple[float, Sentence]:
    """The likeliest of groups of sentences, each of one length; or what there is now."""
    tried = ((score, each) for group in groups for score, each in zip(judge(group, label), group, strict=True))
    return max([now, *tried])


def _fewer(search: Search, sentence: Sentence, most: int | None = ORDERS) -> list[Sentence]:
    """The likeliest with a word left out; all of them where there is no `most`."""
    if not search.possible(len(sentence) - 1):
        return []
    shorter = search.arranging(len(sentence) - 1)
    places = search.arranging(len(sentence)).inside
    return _likeliest([shorter.scored((*sentence[:place], *sentence[place + 1 :])) for place in places], most)


def _more(search: Search, sentence: Sentence, most: int | None = ORDERS) -> list[Sentence]:
    """The likeliest with a word put in, at each place the one that fits best."""
    if not search.possible(len(sentence) + 1):
        return []
    longer = search.arranging(len(sentence) + 1)
    return _likeliest([longer.fitted((*sentence[:place], sentence[place], *sentence[place:]), place)
                       for place in longer.inside if place < len(sentence)], most)


def _again(search: Search, sentence: Sentence) -> list[Sentence]:
    """With a word that is there already put in once more, anywhere: of a repeated word the first layers see one."""
    if not search.possible(len(sentence) + 1):
        return []
    places = search.arranging(len(sentence)).inside
    words = dict.fromkeys(sentence[place] for place in places)
    found = ((*sentence[:at], word, *sentence[at:]) for at in (*places, places.stop) for word in words)
    return list(dict.fromkeys(found))


def _likeliest(found: Sequence[Arranged], most: int | None) -> list[Sentence]:
    ranked = sorted(found, key=lambda each: -each.energy)
    return list(dict.fromkeys(each.sentence for each in ranked))[:most]
