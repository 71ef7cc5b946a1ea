"""What an inverter is trained on, by kind of data and of knowledge."""

from collections.abc import Sequence

from gradleak.attacks.learned.answers import ImageAnswers, WordAnswers
from gradleak.attacks.learned.examples import Pictures, public
from gradleak.attacks.learned.sentences import Sentences, frequencies, text
from gradleak.attacks.parts.labels import Known, count
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Observation, Vocabulary


def images(hidden: Sequence[int], relabel: bool, seen: Observation, rng: Rng) -> ImageAnswers:
    """Public images with labels of their own; without any, or if they shall be relabelled, with those read off the
    update."""
    if seen.vocabulary is not None:
        raise Unsuited("this reads images, the data are text")
    labels, known = Known().read(seen, rng / "labels").labels, public(seen)
    pictures = Pictures(known.readings.to(next(iter(seen.params.values()))), known.labels,
                        labels if relabel or known.labels is None else None, count(seen))
    if len(pictures) < 3:
        raise Unsuited(f"{len(pictures)} public images are too few to learn from; name more")
    return ImageAnswers(seen, pictures, labels, hidden)


def words(hidden: Sequence[int], seen: Observation, rng: Rng) -> WordAnswers:
    """Stretches of public text."""
    vocabulary = _vocabulary(seen)
    source = text(seen, vocabulary)
    sentences = Sentences(seen, vocabulary, source, rng / "labels")
    return WordAnswers(seen, sentences, hidden, max(3, len(public(seen))))


def pseudo(hidden: Sequence[int], epoch: int, seen: Observation, rng: Rng) -> WordAnswers:
    """Words drawn by their frequencies."""
    vocabulary = _vocabulary(seen)
    sentences = Sentences(seen, vocabulary, frequencies(seen, vocabulary), rng / "labels")
    return WordAnswers(seen, sentences, hidden, epoch)


def _vocabulary(seen: Observation) -> Vocabulary:
    if seen.vocabulary is None:
        raise Unsuited("lti_p makes up sentences, and the data are images; use lti")
    return seen.vocabulary
