"""Words by one regression after another, on passages ever more like the one observed.

An update is far from linear in the words of a passage: what one place sends depends on all others. Among passages that
have most words in common it is nearly linear in the rest. So what a regression on all kinds of passages believes of
each place decides which passages the next one learns from; all are played through the client and its defense.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.combine import PARTS
from gradleak.attacks.descent import EXPLAINED
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.gauge import gauged
from gradleak.attacks.learned.lessons import WordLesson
from gradleak.attacks.learned.lessons import words as made_up
from gradleak.attacks.learned.penalties import left_out
from gradleak.attacks.learned.rehearsal import Rehearsal, blocks
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.types import Guess, Know, Observation

SURE = 0.6
"""How sure of its words a round may be when it draws passages for the next: a true word that is never drawn is hardly
ever found."""

ANY = 0.05
"""The share of words that are drawn by how often they occur, whatever is believed."""

GAIN = 1e-6
"""A cosine that grows by less is not worth another look at every place."""

TRIED, SWEEPS = 24, 4
"""Of each place so many of the likeliest words are tried beside all others of the answer, no more in all than a round
has passages, to see what explains the update; and all again, so often, while that helps."""


@dataclass(frozen=True)
class Rounds:
    """So many after the first, which is learned once for all passages of such lengths; each on so many passages. The
    answer that explains the update best is kept."""

    first: Learned
    times: int
    passages: int
    features: int

    @property
    def needs(self) -> frozenset[Know]:
        return self.first.needs

    @property
    def evaluations(self) -> int:
        return self.first.evaluations + self.times * self.passages

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        steps, begun = PARTS * (1 + self.times), start is not None and "round" in start.state
        if start is None or not begun:
            for start in self.first.guesses(seen, rng):
                if start.step < start.steps:
                    yield replace(start, step=PARTS * start.step // start.steps, steps=steps, state={})
            assert start is not None
        lesson, done, likely = made_up(seen, 0, rng), int(start.state.get("round", 0)), start.state["likely"]
        best = start.state.get("best", lesson.likeliest(likely))
        off = residual(seen, lesson.sentences.told(best).batch).cosine
        if not begun:
            yield self._answer(lesson, best, likely, 0)
        if done == self.times:
            return
        local = Local(seen, lesson, self.passages, self.features)
        while done < self.times:
            before, likely = likely, local(likely, rng / done)
            yield replace(self._answer(lesson, best, before, done), step=PARTS * (1 + done) + PARTS // 2)
            done += 1
            for found in (lesson.likeliest(likely), local.mended(likely)):
                now = residual(seen, lesson.sentences.told(found).batch).cosine
                best, off = (found, now) if now <= off else (best, off)
            done = self.times if off < EXPLAINED else done
            yield self._answer(lesson, best, likely, done)

    def _answer(self, lesson: WordLesson, best: Tensor, likely: Tensor, done: int) -> Guess:
        return replace(lesson.sentences.told(best), step=PARTS * (1 + done), steps=PARTS * (1 + self.times),
                       state={"best": best, "likely": likely, "round": torch.tensor(done)})


class Local:
    """A regression on passages such as are believed to have been observed."""

    def __init__(self, seen: Observation, lesson: WordLesson, passages: int, features: int) -> None:
        self.lesson, self.passages, self.blocks = lesson, passages, blocks(seen, (), features)
        self.sent = self.blocks({name: value[None] for name, value in seen.update.items()})
        batch = lesson.sentences.batch(lesson.sentences.tokens(2, Rng(0)))
        self.rehearsal = Rehearsal(seen, batch.x, batch.y, batch.extra)

    def __call__(self, likely: Tensor, rng: Rng) -> Tensor:
        """How likely the update makes each word of each place, seen from passages drawn by how likely they were."""
        drawn = torch.multinomial(believed(likely, self.lesson.often), self.passages, True,
                                  generator=(rng / "words").torch()).T
        drawn = self.lesson.sentences.ordered(drawn)
        meant = self.lesson.embedded(drawn)
        others, own = left_out(self._sent(drawn, rng), meant.flatten(1), self.sent)
        return gauged(others.view_as(meant), meant)(own.view(meant.shape[1:]), self.lesson.sentences.room.table)

    def _sent(self, inside: Tensor, rng: Rng | None = None) -> Tensor:
        """What passages of these words would send; without `rng` nothing is drawn."""
        rows = []
        for number, part in enumerate(torch.split(inside, self.rehearsal.chunk)):
            batch = self.lesson.sentences.batch(part)
            rows.append(self.blocks(self.rehearsal(batch.x, batch.y, batch.extra, rng / number if rng else None)))
        return torch.cat(rows)

    def mended(self, likely: Tensor) -> Tensor:
        """The likeliest words, changed while the update is explained better: place by place to another of the likeliest
        there, and one taken out and put in elsewhere: passages are often right but for words a place too far on.

        What comes of it is an answer, not a belief: wrong words that explain an update together are hard to leave.
        """
        often, words, best = self.lesson.often, self.lesson.likeliest(likely), -1.0
        many = min(TRIED, int(often.isfinite().sum()), max(1, self.passages // len(words)))
        choices = (likely + often).topk(many, 1).indices
        for _ in range(SWEEPS):
            for place, choice in enumerate(choices):
                tried = words.repeat(len(choice) + 1, 1)
                tried[1:, place] = choice
                words, _ = self._best(tried)
            words, now = self._best(moved(words))
            if now <= best + GAIN:
                break
            best = now
        return words

    def _best(self, tried: Tensor) -> tuple[Tensor, float]:
        """The passage (of R x places) that explains the update best, the first of equals, and its cosine."""
        value, which = F.cosine_similarity(self._sent(tried), self.sent).max(0)
        return tried[which], float(value)


def moved(words: Tensor) -> Tensor:
    """A passage, and all that have one of its words in another place, those between shifted by one."""
    rows = [words]
    for place in range(len(words)):
        rest = torch.cat([words[:place], words[place + 1 :]])
        rows += [torch.cat([rest[:to], words[place, None], rest[to:]]) for to in range(len(words)) if to != place]
    return torch.stack(rows)


def believed(likely: Tensor, often: Tensor) -> Tensor:
    """Each word's probability in each place; what is likely counts less where the likeliest would otherwise be surer
    than `SURE` on average."""
    least, most = 0.0, 1.0
    for _ in range(30):
        weight = (least + most) / 2
        sure = float((weight * likely + often).softmax(1).amax(1).mean()) > SURE
        least, most = (least, weight) if sure else (weight, most)
    return (1 - ANY) * (least * likely + often).softmax(1) + ANY * often.softmax(0)
