"""A batch without dropout, sentence by sentence: find one, prove it, subtract its gradient, go on with what is left."""

from gradleak.attacks.exact.assembly import Assembly
from gradleak.attacks.exact.entrance import Entrance
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.members import Members
from gradleak.attacks.exact.reading import Reading, Sentence
from gradleak.rng import Rng


def read(door: Entrance, inside: Members, count: int, rng: Rng) -> Reading:
    """Every sentence that could be proven, then the best guesses at the others."""
    left = Left(door, count)
    if not left.deep.clean:
        return Reading([], [], notes={"tokens": float(left.tokens)})
    assembly = Assembly(door, rng)
    found: list[Sentence] = []
    labels: list[int] = []
    while len(found) < count and left.tokens:
        proven = assembly.next(left, left.members(inside))
        if proven is None:
            break
        found.append(proven[0])
        labels.append(proven[1])
    sentences = [*found, *assembly.leftovers(found, count - len(found))]
    certain = [[number < len(found)] * len(sentence) for number, sentence in enumerate(sentences)]
    notes = {"proven_sentences": float(len(found)), "tests": float(inside.tests)}
    return Reading(sentences, certain, labels if len(labels) == count else None, notes)
