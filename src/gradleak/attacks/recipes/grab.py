"""GRAB: Uncovering Gradient Inversion Risks in Practical Language Model Training (Feng et al., 2024)."""

from dataclasses import replace
from typing import Literal

from gradleak.attacks.combine import Alternate
from gradleak.attacks.descent import Descent
from gradleak.attacks.exact.listing import listed
from gradleak.attacks.parts import directions, objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.masks import WithMasks
from gradleak.attacks.parts.optimisers import Adam
from gradleak.attacks.parts.priors import word_length
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.attacks.search import Beam
from gradleak.registry import register


@register("attack", "grab")
def grab(
    steps: int | None = None, rounds: int | None = None, masks: Literal["learnt", "drawn", "none"] = "learnt",
    labels: Literal["known", "joint", "counted", "given"] = "known", rate: float | None = None,
    objective: Literal["cosine", "l2_l1"] | None = None, share: float | None = None, trust: float | None = None,
    width: int | None = None, sweeps: int | None = None, words: Literal["all", "listed"] = "all", large: bool = False,
    published: bool = False,
) -> Alternate:
    """Match the update over word embeddings and what the client dropped; in turn, search for words place by place.

    masks=none takes nothing for dropped, masks=drawn what the client might have drawn; `share` is the share taken to be
    dropped where it is not the model's, `trust` how far learnt masks are believed when words are compared. words=listed
    searches among those that the first layer's gradient speaks for, as `subspace` reads it. large=true: linear decay
    and clipped gradients.

    Differs from the paper: words are read together with the places they belong to; what was dropped moves with them;
    masks start at their mean and are believed by half; the cosine of each layer, its logarithm, and the embeddings'
    length; a beam of 2 that tries the words the slope favours, of the whole vocabulary, and other places; far fewer
    steps. published=true undoes these. Always: a round that ends with the words it began with is the last; the words
    that match best are kept; labels that are not granted are counted and may be exchanged, lengths are read off the
    rank and may be changed by the beam.
    """
    entries = (objective or ("l2_l1" if published else "cosine")) == "l2_l1"
    told = Embeddings(placed=not published, spare=4, listing=listed if words == "listed" else None)
    step = rate or (0.01 if published else 0.02)
    space = WithMasks(told, "drawn" if published or masks == "drawn" else "mean", share, trust if trust is not None else
                      1.0 if published else 0.5, learnt=masks == "learnt")
    plan = Descent(
        (2000 if published else 150) if steps is None else steps, ways(labels),
        objectives.norms_l1() if entries else objectives.layer_cosine,
        () if published else ((1.0, word_length),), rate=schedules.stairs(step, 0.89, 50), log=not published,
        space=told if masks == "none" else space, starts=2000 if published else 1, yields=8,
        screen=objectives.norms if entries else None, judge=objectives.cosine if published else objectives.layer_cosine)
    if published:
        plan = replace(plan, optimiser=Adam(decay=0.01))
    if large:
        plan = replace(plan, rate=schedules.linear(step), direction=directions.clipped(0.5))
    beam = Beam(4, 5, 4, own=0, steep=0, moves=0, common=()) if published else Beam()
    beam = replace(beam, width=width or beam.width, sweeps=beam.sweeps if sweeps is None else sweeps)
    return Alternate(plan, beam, (5 if published else 3) if rounds is None else rounds,
                     None if published else plan.steps // 2)
