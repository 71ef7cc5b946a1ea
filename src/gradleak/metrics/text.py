"""Sentences. What frames them ([CLS], [SEP], padding) counts only where a name says so."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NoReturn

from gradleak.errors import Unscored
from gradleak.metrics.overlap import f1, in_any_order
from gradleak.registry import register
from gradleak.types import Sentence

REMEDY = "pip install 'gradleak[text]'"

Order = Literal["1", "2", "L"]


@dataclass(frozen=True)
class TextMetric:
    """A pure function of one sentence and its truth, applied sample by sample."""

    name: str
    function: Callable[[Sentence, Sentence], float]
    leak_at: float | None = None
    margin: float = 0.0
    """How much better than a sentence guessed without the update a reading must be to count as read."""
    lead: bool = False
    """Whether this is the number to follow where there is room for one only."""
    best_of_all: bool = False
    """Whether each truth takes the guess that suits it best, even if another truth takes the same."""
    better: Literal["higher", "lower"] = "higher"

    def __call__(self, readings: Sequence[Sentence], truths: Sequence[Sentence]) -> list[float]:
        if not all(isinstance(found, Sentence) for found in (*readings, *truths)):
            _not_text(self.name)
        if self.best_of_all:
            return [max(self.function(reading, truth) for reading in readings) for truth in truths]
        return [self.function(reading, truth) for reading, truth in zip(readings, truths, strict=True)]


def _not_text(name: str) -> NoReturn:
    raise Unscored(f"{name} compares sentences, and these are not; for images there are psnr, ssim, mse, lpips")


def same(one: str, other: str) -> bool:
    """Word for word; how words are spaced does not count."""
    return one.split() == other.split()


def words(text: str) -> list[str]:
    """Runs of letters and digits in lower case: in plain English what the rouge-score package takes for words, and
    words in other scripts too, of which it sees none."""
    return re.findall(r"[^\W_]+", text.lower())


class _Words:
    """`words` in the form the rouge-score package asks for."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


@cache
def _scorer(order: Order, plain: bool) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]
    except ImportError:
        raise Unscored(f"ROUGE needs the rouge-score package: {REMEDY}") from None
    return RougeScorer([f"rouge{order}"], tokenizer=None if plain else _Words())


def package_rouge(reading: str, truth: str, order: Order) -> float:
    """F1 as the rouge-score package gives it by default, without its stemmer: what the papers print."""
    return float(_scorer(order, plain=True).score(truth, reading)[f"rouge{order}"].fmeasure)


def rouge(reading: str, truth: str, order: Order) -> float:
    """F1 of the words (`1`), pairs of neighbours (`2`) or longest common subsequence of words (`L`) of two texts.

    A truth too short to hold any such thing is read if it is read word for word; the package would say 0.
    """
    scorer, wanted = _scorer(order, plain=False), words(truth)
    if not wanted:
        return float(same(reading, truth))
    if order == "2" and len(wanted) == 1:
        return float(words(reading) == wanted)
    return float(scorer.score(truth, reading)[f"rouge{order}"].fmeasure)


def right_places(reading: Sentence, truth: Sentence) -> float:
    """Share of the truth's places that hold the right token."""
    if not truth.tokens:
        return float(not reading.tokens)
    return sum(a == b for a, b in zip(reading.tokens, truth.tokens, strict=False)) / len(truth.tokens)


def right_tokens(reading: Sentence, truth: Sentence) -> float:
    """F1 of the tokens wherever they stand."""
    return f1(in_any_order(reading.tokens, truth.tokens), len(reading.tokens), len(truth.tokens))


def _rouge(order: Order) -> Callable[[Sentence, Sentence], float]:
    return lambda reading, truth: rouge(reading.text, truth.text, order)


def _lamp(order: Order, leak_at: float | None) -> TextMetric:
    return TextMetric(f"lamp_rouge{order}", lambda a, b: package_rouge(a.framed, b.framed, order), leak_at)


def _grab(order: Order, leak_at: float | None) -> TextMetric:
    return TextMetric(f"grab_rouge{order}", lambda a, b: package_rouge(a.text, b.text, order), leak_at,
                      best_of_all=True)


@register("metric", "exact_match")
def exact_match(leak_at: float | None = 1.0) -> TextMetric:
    """Share of sentences read word for word."""
    # No margin: a private sentence read word for word is a leak even where the pool happens to hold it twice.
    return TextMetric("exact_match", lambda a, b: float(same(a.text, b.text)), leak_at)


@register("metric", "rouge1")
def rouge1(leak_at: float | None = None) -> TextMetric:
    """F1 of the words, in any order."""
    return TextMetric("rouge1", _rouge("1"), leak_at)


@register("metric", "rouge2")
def rouge2(leak_at: float | None = None) -> TextMetric:
    """F1 of the pairs of neighbouring words."""
    return TextMetric("rouge2", _rouge("2"), leak_at)


@register("metric", "rougeL")
def rouge_l(leak_at: float | None = 0.5) -> TextMetric:
    """F1 of the longest common subsequence of words: from 0.5 on the gist can be told."""
    return TextMetric("rougeL", _rouge("L"), leak_at, margin=0.2, lead=True)


@register("metric", "token_accuracy")
def token_accuracy(leak_at: float | None = None) -> TextMetric:
    """Share of a sentence's places that hold the right token."""
    return TextMetric("token_accuracy", right_places, leak_at)


@register("metric", "token_f1")
def token_f1(leak_at: float | None = None) -> TextMetric:
    """F1 of the tokens, in any order."""
    return TextMetric("token_f1", right_tokens, leak_at)


@register("metric", "lamp_rouge1")
def lamp_rouge1(leak_at: float | None = None) -> TextMetric:
    """ROUGE-1 as LAMP counts it: [CLS] and [SEP] are words too."""
    return _lamp("1", leak_at)


@register("metric", "lamp_rouge2")
def lamp_rouge2(leak_at: float | None = None) -> TextMetric:
    """ROUGE-2 as LAMP counts it: [CLS] and [SEP] are words too."""
    return _lamp("2", leak_at)


@register("metric", "lamp_rougeL")
def lamp_rouge_l(leak_at: float | None = None) -> TextMetric:
    """ROUGE-L as LAMP counts it: [CLS] and [SEP] are words too."""
    return _lamp("L", leak_at)


@register("metric", "grab_rouge1")
def grab_rouge1(leak_at: float | None = None) -> TextMetric:
    """ROUGE-1 as GRAB counts it: each truth takes the best of all guesses, and may share it."""
    return _grab("1", leak_at)


@register("metric", "grab_rouge2")
def grab_rouge2(leak_at: float | None = None) -> TextMetric:
    """ROUGE-2 as GRAB counts it: each truth takes the best of all guesses, and may share it."""
    return _grab("2", leak_at)


@register("metric", "grab_rougeL")
def grab_rouge_l(leak_at: float | None = None) -> TextMetric:
    """ROUGE-L as GRAB counts it: each truth takes the best of all guesses, and may share it."""
    return _grab("L", leak_at)
