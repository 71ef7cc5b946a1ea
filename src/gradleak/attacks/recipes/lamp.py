"""LAMP: Extracting Text from Gradients with Language Model Priors (Balunović et al., 2022)."""

from dataclasses import replace
from typing import Literal

from gradleak.attacks.combine import Restart
from gradleak.attacks.descent import Descent
from gradleak.attacks.exact.listing import listed
from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.language import LanguagePrior, Ngram
from gradleak.attacks.parts.masks import Dropout, dropping
from gradleak.attacks.parts.optimisers import Adam
from gradleak.attacks.parts.priors import word_length
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.attacks.search import Rearrange, Substitute
from gradleak.registry import register

WEIGHTS = {"cosine": (0.2, 1.0), "l2_l1": (60.0, 25.0), "l2": (60.0, 25.0)}
"""By objective, what perplexity and the embeddings' length weigh in the paper."""


@register("attack", "lamp")
def lamp(
    steps: int = 1000, objective: Literal["cosine", "l2_l1", "l2"] = "cosine", prior: LanguagePrior | None = None,
    lm: float | None = None, norm: float | None = None, moves: Literal["alternate", "end", "none"] = "alternate",
    rate: float = 0.01, labels: Literal["known", "joint", "counted", "given"] = "known",
    words: Literal["all", "listed"] = "all", dropout: Dropout = "averaged", large: bool = False,
    published: bool = False,
) -> Restart:
    """Match the update over word embeddings, and in between rearrange words by how well they match and how they read.

    `lm` and `norm` weigh the language model and the embeddings' length; lm=0, norm=0, moves=end and moves=none are the
    paper's ablations. words=listed searches among those that the first layer's gradient speaks for, as `subspace` reads
    it. dropout=drawn or learnt: what the client dropped is drawn by the attacker too, or searched for beside the words.
    large=true is its way with BERT-large (5000 steps; linear decay, gradients clipped).

    Differs from the paper: a second search that goes on from a draft, which is improved word by word after each
    rearrangement; the language model weighs in proportion to what is still unexplained, and is a word n-gram unless one
    is named; fewer starts, proposals and steps, more rounds. published=true undoes these but for
    steps, of which the paper takes 2000. Always: Adam's memory moves with the
    words, the words with the lowest residual are kept, and the search ends once they explain the update.
    """
    reads, length = WEIGHTS[objective]
    matching: dict[str, objectives.Objective] = {
        "cosine": objectives.layer_cosine, "l2": objectives.l2, "l2_l1": objectives.l2_l1()}
    every = (200 if large else 75) if published else 50
    search = Rearrange(prior or Ngram(), reads if lm is None else lm, 200 if published else 64, every,
                       at_end=moves == "end", relative=not published)
    plan = Descent(
        steps, ways(labels), matching[objective], ((length if norm is None else norm, word_length),),
        rate=schedules.stairs(rate, 0.89, 50),
        space=dropping(Embeddings(listing=listed if words == "listed" else None, spare=0 if published else 4), dropout),
        starts=500 if published else 16,
        search=None if moves == "none" else search, refine=None if published else Substitute(),
        screen=None if published or objective != "l2_l1" else objectives.l2)
    if large:
        plan = replace(plan, optimiser=Adam(decay=0.01), rate=schedules.linear(rate), direction=directions.clipped(0.5))
    return Restart(plan, 1 if published else 2)
