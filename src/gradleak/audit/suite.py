"""Named, frozen lists of attacks: one word for the strongest audit there is. A released list never changes."""

from dataclasses import dataclass
from typing import Literal

from gradleak import registry
from gradleak.registry import register
from gradleak.spec import parse


@dataclass(frozen=True)
class Member:
    """One attack of a suite. `share` is its part of the time; it should read at least as much as the attacks `over`
    which it stands, and is suspected where it does not."""

    attack: str
    share: float = 1.0
    over: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return parse(self.attack).name


@dataclass(frozen=True)
class Suite:
    """Attacks in the order in which they are tried, for images and for words: cheapest and most certain first."""

    images: tuple[Member, ...]
    words: tuple[Member, ...]

    def members(self, words: bool) -> tuple[Member, ...]:
        return self.words if words else self.images

    @property
    def evaluations(self) -> int:
        """At most; what is read early spares the rest."""
        return max(sum(int(registry.build("attack", parse(m.attack)).evaluations) for m in group)
                   for group in (self.images, self.words))


STANDARD_V1 = {
    "full": Suite(
        images=(Member("linear", 0.1), Member("recursive", 0.2), Member("subspace", 0.2), Member("ridge_inverter", 0.5),
                Member("dlg"), Member("ig"), Member("hf_gradinv"), Member("gi_gip"), Member("lti", 2.0)),
        words=(Member("subspace"), Member("tag"), Member("lamp", 3.0, over=("tag",)), Member("grab", 3.0),
               Member("lti", 2.0), Member("lti_p", 2.0)),
    ),
    "quick": Suite(
        images=(Member("linear", 0.1), Member("recursive", 0.2), Member("subspace", 0.2), Member("ridge_inverter", 0.5),
                Member("dlg(steps=200, restarts=1)"), Member("ig(steps=1000, restarts=1)")),
        words=(Member("subspace"), Member("tag(steps=100)"), Member("lamp(steps=100)", 3.0, over=("tag",))),
    ),
}


@register("suite", "standard-v1")
def standard_v1(profile: Literal["full", "quick"] = "full") -> Suite:
    """The standard suite: exact attacks first, then searches, each later one only while a sample is still unread.

    What learns from public data, or from how often words occur, takes part where a threat grants it. Per sample the
    most any of them read is reported, beside what the attacker, who sees only the residual, would pick. `quick`
    searches for a fraction of the time: for a gate in CI.
    """
    return STANDARD_V1[profile]
