"""Gradient inversion with a generative image prior (Jeon, Kim, Lee, Oh and Ok, 2021)."""

from typing import Literal

from gradleak.attacks.combine import Stages
from gradleak.attacks.descent import Descent
from gradleak.attacks.learned.generator import Fit
from gradleak.attacks.learned.gip import Prepared
from gradleak.attacks.parts import objectives, schedules
from gradleak.attacks.parts.inference import ways
from gradleak.attacks.parts.painted import Painted
from gradleak.attacks.parts.priors import total_variation
from gradleak.attacks.parts.spaces import Pixels, Space
from gradleak.registry import register


@register("attack", "gi_gip")
def gi_gip(
    steps: int = 1500, restarts: int = 2, tv: float = 1.0, rate: float = 0.05, latent: int = 256, fit: int = 1500,
    pixels: bool = True, generator: str | None = None,
    labels: Literal["joint", "counted", "given", "lowest", "minimum", "evolved"] = "counted",
) -> Prepared:
    """Search among the pictures of a generator fitted to public images: its latents first, then its weights, and at the
    end the pixels themselves.

    The fit (`fit` steps of a small convolutional autoencoder) is kept for the next time; generator=
    'package.module:build' brings your own and needs no public images. Half the steps go to the latents, from `restarts`
    starts, a quarter each to weights and pixels. Where a threat knows the defense, signs and gaps are matched as such.

    Differs from the paper: an autoencoder's decoder instead of a GAN's; the layers balanced and the logarithm of the
    mismatch, as in `ig`; latents are not drawn to their prior; the last stage, which pixels=false leaves out.
    """
    learned = Fit(latent, steps=fit, path=generator)
    parts: list[tuple[Space, int, int]] = [
        (Painted(learned), steps // 2, restarts), (Painted(learned, free=True), steps // 4, 1),
        (Pixels(), steps // 4, 1)]
    stages = tuple(
        Descent(max(1, many), ways(labels), objectives.balanced(objectives.cosine, 0.5), ((tv, total_variation),),
                rate=schedules.geometric(rate, rate / (100 if number == 2 else 10)), log=True, space=space, lanes=lanes)
        for number, (space, many, lanes) in enumerate(parts[: 3 if pixels else 2]))
    return Prepared(learned, Stages(stages))
