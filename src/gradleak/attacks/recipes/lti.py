"""Learning to Invert (Wu, Chen, Guo and Weinberger, 2023): LTI, and LTI-P, which needs no text."""

from functools import partial

from gradleak.attacks.combine import ByKind
from gradleak.attacks.learned.fit import Learned
from gradleak.attacks.learned.inverter import Inverter
from gradleak.attacks.learned.makers import images, pseudo, words
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.types import Know


@register("attack", "lti")
def lti(
    epochs: int | None = None, rate: float | None = None, hidden: tuple[int, ...] = (), ratio: float | None = None,
    features: int | None = None, size: int | None = None, patience: int = 15, relabel: bool = False,
) -> ByKind:
    """Train a network to invert updates, on public examples played through the client and its defense.

    Images: 3000-3000, 200 epochs of batches of 256, rate 1e-4, all of the update. Text: 600, then 1000 for each place,
    20 epochs of batches of 64, rate 1e-3, the update hashed to a tenth (`ratio`, or so many `features`). An epoch of
    text is as many stretches of public text as it has sentences. `relabel` gives public images the labels that were
    read off the update, as `ridge_inverter` does: the network has fewer updates to tell apart, and serves these labels.

    Differs from the paper: inputs are divided by their common rms; training ends after `patience` epochs without gain
    on held-out examples; words come from an embedding each place is mapped to, so that the last layer is small; labels
    are read off the last layer. Defenses act on the batch's update, as a client's do.
    """
    _check(epochs=epochs, size=size, patience=patience, ratio=ratio, features=features)
    shape, places = hidden or (3000, 3000), hidden or (600, 1000)
    needs = frozenset({Know.PUBLIC_DATA})
    return ByKind(
        Learned(Inverter("lti", partial(images, shape, relabel), needs, epochs or 200, size or 256, rate or 1e-4,
                         ratio or 1.0, features, patience, shape)),
        Learned(Inverter("lti", partial(words, places), needs, epochs or 20, size or 64, rate or 1e-3, ratio or 0.1,
                         features, patience, places)))


@register("attack", "lti_p")
def lti_p(
    epochs: int = 20, rate: float = 1e-3, hidden: tuple[int, ...] = (600, 1000), ratio: float = 0.1,
    features: int | None = None, size: int = 64, patience: int = 15, epoch: int = 180_000,
) -> Learned:
    """LTI on made-up text: words drawn by their frequencies (knowledge token_frequencies), no sentence twice.

    An epoch is so many sentences. Differs from the paper: as `lti` does.
    """
    _check(epochs=epochs, size=size, patience=patience, ratio=ratio, features=features, epoch=epoch)
    return Learned(Inverter("lti_p", partial(pseudo, hidden, epoch), frozenset({Know.TOKEN_FREQUENCIES}), epochs, size,
                            rate, ratio, features, patience, (*hidden, epoch)))


def _check(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and (value <= 0 or (name != "ratio" and value < 1)):
            raise UsageError(f"{name}={value}: at least 1" if name != "ratio" else f"ratio={value}: above 0")
