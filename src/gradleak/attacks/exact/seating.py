"""Which words stood in which places of several sentences, by the energy that the first layers' gradients have."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.exact.arrange import BETTER, Shortlist, explained
from gradleak.attacks.exact.dictionary import Dictionary
from gradleak.attacks.exact.likely import Search

ROUNDS = 8
"""Of sweeps and exchanges, while they help; three are usual."""

RIDGE = 1e-7
"""So that two seats of one place with the same word, which count once, can be solved for."""

Key = tuple[int, int]
"""A token and its place."""


class Seating:
    """Words of a pool on seats: every place has as many as sentences reach beyond it. The frames are fixed."""

    def __init__(self, atoms: Dictionary, energy: Tensor, pool: Tensor, frames: Sequence[Key], seats: Sequence[int]):
        self.pool, self.energy, self.seats = pool, energy, list(seats)
        places = torch.arange(max(self.seats, default=0) + 1)
        tokens, at = pool.repeat(len(places)), places.repeat_interleave(len(pool))
        self.listed = Shortlist(tokens, at, atoms.vectors(tokens, at), energy)
        self.frames = atoms.vectors(*torch.tensor(frames, dtype=torch.long).reshape(-1, 2).mT)

    def best(self) -> tuple[list[Key], float]:
        """Tokens with their places, and the energy explained: greedily, then improved while that helps."""
        chosen = self._greedy()
        energy = self._energy(chosen)
        for _ in range(ROUNDS):
            before = energy
            chosen = self._swept(chosen)
            chosen, energy = self._exchanged(chosen, self._energy(chosen))
            if energy <= before * (1 + BETTER):
                break
        return [(int(self.listed.tokens[row]), int(self.listed.places[row])) for row in chosen], energy

    def _vectors(self, chosen: list[int]) -> Tensor:
        return torch.cat([self.frames, self.listed.vectors[chosen]])

    def _energy(self, chosen: list[int]) -> float:
        return explained(self.energy, self._vectors(chosen))

    def _greedy(self) -> list[int]:
        """Word after word, whichever adds the most, wherever a seat is free."""
        chosen, left = list[int](), torch.bincount(torch.tensor(self.seats), minlength=max(self.seats) + 1)
        while len(chosen) < len(self.seats):
            gains = self.listed.gains(self._vectors(chosen))
            pick = int(gains.masked_fill(left[self.listed.places] == 0, -1.0).argmax())
            left[self.listed.places[pick]] -= 1
            chosen.append(pick)
        return chosen

    def _swept(self, chosen: list[int]) -> list[int]:
        """Every seat in turn gets the word that adds the most to the others."""
        chosen = chosen.copy()
        for seat, row in enumerate(chosen):
            here = self.listed.at(int(self.listed.places[row]))
            others = self._vectors(chosen[:seat] + chosen[seat + 1 :])
            chosen[seat] = here.start + int(self.listed.gains(others, here).argmax())
        return chosen

    def _exchanged(self, chosen: list[int], energy: float) -> tuple[list[int], float]:
        """The best exchange of two words between places, while one helps."""
        now, size, vectors = torch.tensor(chosen), len(self.pool), self.listed.vectors
        one, other = torch.triu_indices(len(now), len(now), 1)
        apart = now[one] // size != now[other] // size
        one, other = one[apart], other[apart]
        while len(one):
            there, back = (now[a] // size * size + now[b] % size for a, b in ((one, other), (other, one)))
            seats = torch.stack([one, other], 1) + len(self.frames)
            totals = replaced(self.energy, self._vectors(now.tolist()), seats, (vectors[there], vectors[back]))
            top = int(totals.argmax())
            if float(totals[top]) <= energy * (1 + BETTER):
                break
            now[one[top]], now[other[top]], energy = there[top], back[top], float(totals[top])
        return now.tolist(), energy


def replaced(energy: Tensor, chosen: Tensor, seats: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
    """The energy in the space of chosen vectors X (n x d) after two of them, in `seats` (K x 2), were replaced by each
    of K pairs of others (K x d each).

    Nothing is solved anew: with P the inverse of X X^T and H = X E X^T, all explain tr(P H), the two that go
    tr(inv(P_J) (P H P)_J), for J their rows and columns, and what those that come add to the rest is read off their
    products with X in the same way (inverses of blocks).
    """
    n, pressed = len(chosen), chosen @ energy
    gram, held = chosen @ chosen.mT, pressed @ chosen.mT
    ridge = RIDGE * gram.diagonal().mean()
    inverse: Tensor = torch.linalg.inv(gram + ridge * torch.eye(n).to(gram))
    by = inverse @ held
    block = seats[:, :, None], seats[:, None, :]
    left: Tensor = torch.linalg.inv(inverse[block])
    gone = left @ (by @ inverse)[block]
    total = by.trace() - gone.diagonal(dim1=1, dim2=2).sum(1)

    new = torch.stack(pairs, 1)  # K x 2 x d
    along, across = new @ chosen.mT, new @ pressed.mT
    shares = along @ inverse
    rest = across @ inverse - shares @ by.mT  # energy between what is new in a vector and the chosen
    mine = seats[:, None, :].expand(-1, 2, -1)
    shared, resting = shares.gather(2, mine), rest.gather(2, mine)
    fresh = new @ new.mT - along @ shares.mT + ridge * torch.eye(2).to(gram) + shared @ left @ shared.mT
    bound = shared @ left @ resting.mT
    inside = (new @ energy) @ new.mT - shares @ across.mT - across @ shares.mT + shares @ held @ shares.mT
    inside = inside + bound + bound.mT + shared @ gone @ left @ shared.mT
    added: Tensor = torch.linalg.solve(fresh, inside)
    return total + added.diagonal(dim1=1, dim2=2).sum(1)


def seating(search: Search, pool: Tensor, lengths: Sequence[int], known: Sequence[Key] = ()) -> Seating:
    """Seats for sentences of such lengths, beside words whose places are known."""
    fixed = list(dict.fromkeys([*known, *framed(search, lengths)]))
    return Seating(search.door.atoms, search.heard.energy, pool, fixed, seats(search, lengths))


def framed(search: Search, lengths: Sequence[int]) -> list[Key]:
    """What opens and closes sentences of such lengths, each once."""
    opening, closing = search.opening, search.closing
    return [*((token, place) for place, token in enumerate(opening)),
            *((token, length - len(closing) + place)
              for length in sorted(set(lengths)) for place, token in enumerate(closing))]


def seats(search: Search, lengths: Sequence[int]) -> list[int]:
    """The places inside sentences of such lengths."""
    first, last = len(search.opening), len(search.closing)
    return [place for length in lengths for place in range(first, length - last)]
