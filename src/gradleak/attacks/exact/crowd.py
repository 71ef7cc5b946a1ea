"""Several sentences behind noise, rounding or gaps: first the words, then their places, then who stood with whom.

The first layers' energy tells the words nearly for sure, and their places roughly; attention's gradient tells roughly
which stood in one sentence. From there the whole update decides, replayed with one change at a time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.attacks.exact import likely
from gradleak.attacks.exact.affinity import affinity, attention, deltas
from gradleak.attacks.exact.course import Course
from gradleak.attacks.exact.echo import Echo
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.gaps import Seated, heard, sifted
from gradleak.attacks.exact.judge import MANY, Company, Judge
from gradleak.attacks.exact.likely import HEARD, Search, hearings
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.attacks.exact.seating import Key, seating
from gradleak.attacks.exact.settling import ENDS, Judging, Settling, likeliest, relabelled
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Facts, Know

LONGEST = 48
"""Places looked at where lengths are not told; longer sentences are not read out of a batch."""

GUESSES = 3
"""Sets of lengths from which sentences are begun; the whole update tells which of them is right."""

SPARE = 8
"""Words are at an end when so many in a row add no more than words do where none stood; they are kept, too."""

STARTS, WAYS = 24, 6
"""Random ways to part the words among the sentences, each then improved; so many of them, best first, are replayed."""

WORTH = 0.05
"""Of a nat by which a replay prefers a batch of a client that drops. What was dropped is not replayed, and is missed in
very many entries at once, which are counted as if each told for itself."""

LABELLINGS = 64
"""Ways to label a batch up to which all are tried."""


class Doubting:
    """Judges batches of a client that drops, by what reaches its early layers and, with doubt, by replaying them."""

    def __init__(self, echo: Echo, judge: Judge) -> None:
        self.echo, self.judge = echo, judge

    def entire(self, score: float) -> bool:
        """Never: what was dropped is left to explain."""
        return False

    def quiet(self, company: Company, score: float) -> bool:
        """Never, for the same reason."""
        return False

    def companies(self, many: Sequence[Company]) -> list[float]:
        return _both(self.echo.companies(many), self.judge.companies(many))

    def instead(self, company: Company, which: int, rivals: Sequence[Sentence]) -> list[float]:
        return _both(self.echo.instead(company, which, rivals), self.judge.instead(company, which, rivals))

    def slopes(self, company: Company) -> Tensor:
        return self.judge.slopes(company)


def _both(heard: Sequence[float], replayed: Sequence[float]) -> list[float]:
    return [one + WORTH * other for one, other in zip(heard, replayed, strict=True)]


def read(door: Entrance, count: int, rng: Rng, course: Course) -> Iterator[Reading]:
    """All sentences of a batch, as they come to be read; nothing of it is proven."""
    judge, search = Judge(door), hearings(door, rng, LONGEST)[-1]
    gaps = judge.gaps and not door.drops  # of which the truth leaves nothing unexplained
    pool, seat = gathered(search, count)
    lengths = _lengths(search, pool, seat, count)
    beginnings = _beginnings(door, search, pool, lengths, gaps, rng)
    echo = Echo(search, pool, max(map(sum, lengths)), seat, rng / "echo")
    deciding: Judging = Doubting(echo, judge) if door.drops else judge
    found = list[Settling]()
    for number, (starts, pool) in enumerate(beginnings):
        echo.listen(pool)
        guided = likeliest(echo, starts)[0]
        if not course.ahead(f"beginning {number}"):
            if not found:
                yield _draft(guided.sentences)
            # By the lengths that sifting found: any word adds to the echo.
            sized = search.told_of(map(len, guided.sentences)) if gaps else search
            guided, _ = Settling(sized, echo, guided, pool).settled(rng / "echo", wide=not gaps)
        found.append(Settling(search, deciding, _labelled(door, judge, guided), pool, echo, judge.near))
        for _ in course.through(f"beginning {number}", found[-1], rng, wide=not gaps):
            yield _so_far(_best(found), course)
        if deciding.entire(found[-1].now):
            break
    best = _best(found)
    if gaps:
        for _ in _exhausted(door, judge, best, rng, course):
            yield _so_far(best, course)
    end = _so_far(best, course)
    alone = float(deciding.quiet(best.company, best.now))
    yield replace(end, open=False, turns=end.turns + 1, notes={**end.notes, "noise_alone": alone})


def _best(found: Sequence[Settling]) -> Settling:
    return max(found, key=lambda each: each.now)


def _draft(sentences: Sequence[Sentence]) -> Reading:
    """None of it proven, nor its last word."""
    return Reading(sentences, [[False] * len(each) for each in sentences], open=True)


def _so_far(best: Settling, course: Course) -> Reading:
    company = best.company
    notes = {"rank": float(best.search.heard.rank), "likelihood": best.now, "words": float(len(best.pool))}
    return replace(_draft(company.sentences), labels=company.labels, notes=notes, turns=course.taken,
                   state=course.state)


def _exhausted(door: Entrance, judge: Judge, best: Settling, rng: Rng, course: Course) -> Iterator[None]:
    """While something is left to explain: a sentence read again, then all that may be tried, then one read again."""
    tried: Company | None = None
    times = 0
    for wide in (False, True):
        if wide:
            yield from course.through("widely", best, rng)
        while best.company != tried and not judge.entire(best.now):
            tried, times = best.company, times + 1
            name = f"again {times}"
            if not course.ahead(name):
                other = reread(door, judge, best.company, best.now, rng / "again")
                if other is None:
                    break
                best.offer([other])
            yield from course.through(name, best, rng, wide)


def single(door: Entrance, rng: Rng, course: Course) -> Iterator[Reading]:
    """One sentence: of which if entries were left out, and some are not explained, as a batch of one."""
    reading, judge = likely.read(door, rng), Judge(door)
    if not judge.gaps or judge.entire(reading.notes["likelihood"]):
        yield reading
        return
    yield replace(reading, open=True)
    for other in read(door, 1, rng / "batch", course):
        better = max(reading, other, key=lambda each: each.notes.get("likelihood", -math.inf))  # a draft has none
        yield replace(better, open=other.open, turns=other.turns, state=other.state)


def _beginnings(
    door: Entrance, search: Search, pool: Tensor, lengths: list[tuple[int, ...]], gaps: bool, rng: Rng,
) -> Iterator[tuple[list[Company], Tensor]]:
    """Companies to begin with, and the words heard: all at once; or where entries were left out, and the whole update
    tells the truth when it is found, one guess after the other, each first made as likely as can be."""
    if not gaps:
        yield [Company(way, None) for each in lengths for way in begun(door, search, pool, each, rng)], pool
        return
    known = set[Seated]()
    for each in lengths:
        now = sifted(search, pool, each)
        end = Seated(now.lengths, tuple(sorted(now.seats)))
        if end in known:  # lengths so near each other often end alike
            continue
        known.add(end)
        pool = heard(pool, now)
        ways = parted(door, search, list(now.seats), now.lengths, rng)
        yield [Company(way, None) for way in ways[:WAYS]], pool


def begun(
    door: Entrance, search: Search, pool: Tensor, lengths: Sequence[int], rng: Rng,
) -> list[tuple[Sentence, ...]]:
    """Sentences of such lengths, by the first layers alone: the ways to part the words that are tied best."""
    seated, _ = seating(search, pool, lengths).best()
    return parted(door, search, seated, lengths, rng)[:WAYS]


def gathered(search: Search, count: int) -> tuple[Tensor, float]:
    """The words of all sentences: one after the other the one that adds the most energy, wherever it stands, until
    several add no more than the best word does in places that no sentence reaches; and how much that is. What noise,
    rounding or gaps make of words that stood elsewhere is so told from words, whatever it looks like."""
    rank, opening, places = max(1, search.heard.rank), len(search.opening), search.longest
    listed, beyond = search.listed(range(opening, places), rank), range(places, search.door.places)[:places]
    absent = search.listed(beyond, rank) if beyond else None
    known = search.door.atoms.vectors(torch.tensor(search.opening, dtype=torch.long), torch.arange(opening))
    found: dict[int, None] = {}
    seat, idle = HEARD * search.heard.level, 0  # unless there are places in which words are surely absent
    for _ in range(min(count * max(search.ends(ENDS)), search.door.atoms.width // 2)):
        gains = listed.gains(known)
        pick = int(gains.argmax())
        seat = seat if absent is None else float(absent.gains(known).max())
        idle = 0 if float(gains[pick]) > seat else idle + 1
        known = torch.cat([known, listed.vectors[pick : pick + 1]])
        found[int(listed.tokens[pick])] = None
        if idle == SPARE:
            break
    return torch.tensor(sorted(set(found) - set(search.closing)), dtype=torch.long), seat


def _lengths(search: Search, pool: Tensor, seat: float, count: int) -> list[tuple[int, ...]]:
    """As told; or of the likely ends those with which the words explain the most, beyond what any further `seat` would:
    begun with the likeliest, changed one by one; the best few that were tried."""
    if isinstance(search.told, Tensor):
        return [tuple(search.told.flatten().tolist())]
    ends = search.ends(ENDS)
    tried: dict[tuple[int, ...], float] = {}

    def worth(lengths: tuple[int, ...]) -> float:
        if lengths not in tried:
            tried[lengths] = seating(search, pool, lengths).best()[1] - seat * sum(lengths)
        return tried[lengths]

    now = tuple(sorted((ends * count)[:count]))
    while True:
        near = {tuple(sorted((*now[:place], end, *now[place + 1 :]))) for place in range(count) for end in ends}
        best = max(sorted(near), key=worth)
        if worth(best) <= worth(now):
            return sorted(tried, key=worth, reverse=True)[:GUESSES]
        now = best


def reread(door: Entrance, judge: Judge, company: Company, score: float, rng: Rng) -> Company | None:
    """The batch with one sentence read again, out of what the others leave of the update, if that explains more. Where
    entries were left out the truth leaves nothing, so it is known when there is reason to."""
    if len(company.sentences) == 1:  # which leaves nothing to read another out of
        return None
    for which in range(len(company.sentences)):
        reading = likely.read(_rest(door, judge, company, which), rng / which)
        other = company.but(which, reading.sentences[0])
        if company.labels is not None and reading.labels is not None:
            other = replace(other, labels=(*company.labels[:which], reading.labels[0], *company.labels[which + 1 :]))
        if judge.companies([other])[0] > score + likely.CHANCE:
            return other
    return None


def _rest(door: Entrance, judge: Judge, company: Company, which: int) -> Entrance:
    """The entries that were sent, without what all sentences but one give: an update of that one alone."""
    seen, others = door.seen, judge.given(company.without(which))
    weights = [len(sentence) - 1 if seen.next_word else 1 for sentence in company.sentences]  # a loss a word, or one
    share = 1 - weights[which] / sum(weights)
    update = {name: (sent - share * others[name]) * (sent != 0) for name, sent in seen.update.items()}
    facts: dict[Know, object] = {Know.COUNT: 1}
    if Know.LENGTHS in seen.facts:
        facts[Know.LENGTHS] = torch.tensor([len(company.sentences[which])])
    if Know.LABELS in seen.facts and company.labels is not None:
        facts[Know.LABELS] = torch.tensor([company.labels[which]])
    return replace(door, seen=replace(seen, update=update, facts=Facts(facts)))


def parted(
    door: Entrance, search: Search, seated: list[Key], lengths: Sequence[int], rng: Rng,
) -> list[tuple[Sentence, ...]]:
    """One word of every place for each sentence that reaches it, as attention ties them; the best tied first."""
    seated = sorted(seated, key=lambda key: key[1])
    places = torch.tensor([place for _, place in seated])
    ties = _ties(door, search, seated)
    found: dict[tuple[Sentence, ...], float] = {}
    for start in range(STARTS):
        owners = _dealt(places, lengths, len(search.closing), rng / "start" / start)
        worth, owners = _improved(owners, places, ties, lengths, len(search.closing))
        words = [[seated[n][0] for n in (owners == number).nonzero().flatten().tolist()]
                 for number in range(len(lengths))]
        found[tuple((*search.opening, *inside, *search.closing) for inside in words)] = worth
    return sorted(found, key=lambda way: -found[way])


def _ties(door: Entrance, search: Search, seated: list[Key]) -> Tensor:
    """How much each two words look at each other; none where a model's attention cannot be told, and chance deals."""
    known = [*seated, *((token, place) for place, token in enumerate(search.opening))]
    x = door.atoms.vectors(*torch.tensor(known).mT)
    try:
        how = attention(door)
    except Unsuited:
        return torch.zeros(len(seated), len(seated)).to(x)
    return affinity(door, x, *deltas(door, x, how), how)[: len(seated), : len(seated)]


def _dealt(places: Tensor, lengths: Sequence[int], closing: int, rng: Rng) -> Tensor:
    owners = torch.empty_like(places)
    for place in sorted(set(places.tolist())):
        reach = torch.tensor([number for number, length in enumerate(lengths) if length - closing > place])
        owners[places == place] = reach[(rng / place).permutation(len(reach))]
    return owners


def _improved(
    owners: Tensor, places: Tensor, ties: Tensor, lengths: Sequence[int], closing: int,
) -> tuple[float, Tensor]:
    """Each place's words dealt anew by their ties to the rest, while that helps."""
    total = -1.0
    while True:
        for place in sorted(set(places.tolist())):
            here = places == place
            reach = torch.tensor([number for number, length in enumerate(lengths) if length - closing > place])
            mine = (owners[~here][None] == reach[:, None]).to(ties)
            cost = ties[here][:, ~here] @ mine.mT
            order = torch.from_numpy(linear_sum_assignment(cost.numpy(), maximize=True)[1])
            owners[here] = reach[order]
        now = float(ties[owners[:, None] == owners].sum())
        if now <= total * (1 + 1e-9):
            return now, owners
        total = now


def _labelled(door: Entrance, judge: Judge, company: Company) -> Company:
    """With the labels that are likeliest: told ones, otherwise of all, or where these are many, one changed."""
    if door.seen.next_word:
        return company
    company = replace(company, labels=(0,) * len(company.sentences))
    told, lengths = (door.seen.facts.get(know) for know in (Know.LABELS, Know.LENGTHS))
    if isinstance(told, Tensor):
        company = replace(company, labels=tuple(told.flatten().tolist()))
        if isinstance(lengths, Tensor):  # then the two go together
            return company
    classes = range(min(door.seen.classes, MANY))
    if isinstance(told, Tensor) or len(classes) ** len(company.sentences) > LABELLINGS:
        return likeliest(judge, list(relabelled(door, company)))[0]
    every = product(classes, repeat=len(company.sentences))
    return likeliest(judge, [replace(company, labels=labels) for labels in every])[0]
