"""The one discrete loop: candidates that differ in words or their order, judged in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.attacks.parts.language import LanguagePrior
from gradleak.attacks.parts.moves import ALL, Move, propose
from gradleak.attacks.parts.optimisers import Value
from gradleak.attacks.parts.tokens import TokenRoom
from gradleak.attacks.scoring import Scoring
from gradleak.rng import Rng

State = dict[str, Tensor]


class Run(Protocol):
    """What a search sees of the descent it belongs to."""

    @property
    def words(self) -> TokenRoom: ...

    @property
    def scoring(self) -> Scoring: ...

    def unpack(self, z: Tensor) -> tuple[Tensor, Tensor]: ...

    def slope(self, x: Tensor, y: Tensor) -> Value: ...

    def tell(self, state: State, ids: Tensor, y: Tensor) -> State: ...


@dataclass(frozen=True)
class Rearrange:
    """Every so many steps, try `proposals` one-move orders of each sentence and keep the best by how well it matches
    and how natural it reads. The optimiser's memory moves with the words. A lane that goes on from a draft is left
    alone."""

    prior: LanguagePrior
    weight: float = 0.2
    proposals: int = 200
    every: int = 75
    first: float = 0.1
    at_end: bool = False
    relative: bool = False
    """Whether the prior weighs in proportion to the mismatch: evidence then outweighs it as the search closes in."""
    moves: tuple[Move, ...] = ALL

    def rounds(self, step: int, steps: int) -> int:
        """How many rounds follow a step (counted from 1)."""
        if self.at_end:
            return steps // self.every if step == steps else 0
        return int(step % self.every == 0 and step >= self.first * steps)

    def improve(self, run: Run, state: State, rng: Rng) -> State:
        x, y = run.unpack(state["z"].clone())  # a copy: what is unpacked may be the unknowns themselves
        for lane in range(len(x) - int("draft.ids" in state)):
            for which in range(x.shape[1]):
                order = self._best(run, x[lane], y[lane], which, rng / lane / which)
                x[lane, which] = x[lane, which][order]
                for name in _along(state):
                    block = state[name][lane, : x[0].numel()].view(x[0].shape)
                    block[which] = block[which][order].clone()
        return state

    def _best(self, run: Run, x: Tensor, y: Tensor, which: int, rng: Rng) -> Tensor:
        orders = propose(run.words.inside[which], self.moves, self.proposals, rng.numpy())
        extra = {name: value[0] for name, value in run.words.extra(1).items()}
        scores = run.scoring.changed(x, y, extra, which, x[which][orders]).double()
        if self.weight:
            words = run.words.read(x[None])[0, which]
            weight = self.weight * float(scores.min()) if self.relative else self.weight
            scores = scores + weight * self.prior(_texts(run.words, words[orders])).to(scores)
        return orders[int(scores.argmin())]


@dataclass(frozen=True)
class Substitute:
    """A draft, improved sentence by sentence while that helps: at every place the words that the objective's slope
    favours and those nearest to the search, other orders, and the best of these changes together. About `words` are
    tried a sentence; a round without success makes the next one try twice as many, up to `most`.
    """

    words: int = 64
    most: int = 256
    orders: int = 32
    sweeps: int = 2

    def improve(self, run: Run, state: State, rng: Rng) -> State:
        """The state with its draft improved, and told where it explains the update better than any answer so far."""
        ids, y, wide = self._draft(run, state)
        nearby = run.words.nearest.several(run.unpack(state["z"])[0], 1)
        extra = {name: value[0] for name, value in run.words.extra(1).items()}
        better = 0
        for sweep in range(self.sweeps):
            slope, before = run.slope(run.words.embed(ids)[None], y[None]).gradient[0], ids.clone()
            for which in range(len(ids)):
                tried = self._tried(run, ids[which], which, slope[which], nearby[:, which], wide, rng / sweep / which)

                def judge(rows: Tensor, which: int = which) -> Tensor:
                    return run.scoring.changed(run.words.embed(ids), y, extra, which, run.words.embed(rows))

                ids[which] = _best_of(ids[which], tried, judge)
            if torch.equal(ids, before):
                break
            better += 1
        wide = self.words if better else min(2 * wide, self.most)
        draft = {"draft.ids": ids, "draft.y": y, "draft.wide": torch.tensor(wide)}
        return {**run.tell(_resumed(run, state, ids), ids, y), **draft}

    def _draft(self, run: Run, state: State) -> tuple[Tensor, Tensor, int]:
        """Go on with the draft, or with the answer so far where that matches better."""
        told = (state["told.ids"].clone(), state["told.y"], self.words)
        if "draft.ids" not in state:
            return told
        ids = torch.stack([state["draft.ids"], told[0]])
        y = torch.stack([state["draft.y"], told[1]])
        old, new = run.scoring(run.words.embed(ids), y, run.words.extra(2)).tolist()
        return (ids[0].clone(), y[0], int(state["draft.wide"])) if old <= new else told

    def _tried(
        self, run: Run, row: Tensor, which: int, slope: Tensor, nearby: Tensor, wide: int, rng: Rng,
    ) -> Tensor:
        """Rows that differ from this one by a word, or in their order."""
        places = run.words.inside[which].nonzero().flatten()
        steepest = run.words.nearest.steepest(slope[places], max(2, wide // max(1, len(places))))
        words = torch.cat([steepest, nearby[:, places].permute(1, 0, 2).flatten(1)], 1)
        rows = row.repeat(words.numel(), 1)
        rows[torch.arange(len(rows)), places.repeat_interleave(words.shape[1])] = words.flatten()
        orders = propose(run.words.inside[which], ALL, self.orders, rng.numpy())
        distinct: Tensor = torch.unique(torch.cat([rows, row[orders]]), dim=0)
        return distinct


def _best_of(row: Tensor, tried: Tensor, judge: Callable[[Tensor], Tensor]) -> Tensor:
    """The best of the rows tried, or of several good single words put in together."""
    scores = judge(tried)
    here = float(scores[(tried == row).all(1).nonzero()[0, 0]])
    lead, winner = float(scores.min()), tried[int(scores.argmin())]
    single = ((tried != row).sum(1) == 1) & (scores < here)
    joint: dict[int, int] = {}
    for number in scores.argsort().tolist():
        if bool(single[number]):
            joint.setdefault(int((tried[number] != row).nonzero()[0, 0]), int(number))
    if len(joint) > 1:
        together, rows = row.clone(), []
        for place, number in joint.items():
            together = together.clone()
            together[place] = tried[number, place]
            rows.append(together)
        several = judge(torch.stack(rows[1:]))
        if float(several.min()) < lead:
            lead, winner = float(several.min()), rows[1:][int(several.argmin())]
    return winner if lead < here - 1e-7 else row


def _resumed(run: Run, state: State, ids: Tensor) -> State:
    """Of several lanes the last one goes on from the draft, without a memory."""
    if len(state["z"]) == 1:
        return state
    fresh = {name: state[name].index_fill(0, torch.tensor([len(state["z"]) - 1]), 0.0) for name in _along(state)}
    x = run.words.embed(ids)
    fresh["z"] = torch.cat([state["z"][:-1], torch.cat([x.flatten(), state["z"][-1, x.numel() :]])[None]])
    return {**state, **fresh}


def _texts(room: TokenRoom, rows: Tensor) -> Sequence[str]:
    return [room.vocabulary.sentence(row).text for row in rows]


def _along(state: State) -> list[str]:
    """The unknowns, and what the optimiser keeps of the same shape."""
    return [name for name, value in state.items()
            if name == "z" or (name.startswith("optimiser.") and value.shape == state["z"].shape)]
