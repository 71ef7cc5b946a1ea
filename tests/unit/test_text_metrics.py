"""Sentences compared: against outside references where there are any, by hand where not."""

import sys
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import registry
from gradleak.audit.verdict import lead, leaked
from gradleak.errors import Unscored
from gradleak.metrics import text
from gradleak.metrics.match import assign
from gradleak.metrics.overlap import in_order
from gradleak.spec import parse
from gradleak.types import NOTHING, Metric, Sentence

WORDS = ["the", "film", "was", "slow", "but", "kind", ".", "children", "ran", "'"]
WORD_IDS = st.lists(st.integers(0, len(WORDS) - 1), min_size=2, max_size=9)


def sentence(*words: str) -> Sentence:
    tokens = tuple(WORDS.index(w) + 10 if w in WORDS else 900 + len(w) for w in words)
    said = " ".join(words)
    return Sentence(tokens, words, said, f"[CLS] {said} [SEP]")


def said(line: str) -> Sentence:
    return sentence(*line.split())


def metric(name: str) -> Metric:
    return registry.build("metric", parse(name))  # type: ignore[no-any-return]


def score(name: str, reading: str, truth: str) -> float:
    (value,) = metric(name)([said(reading)], [said(truth)])
    return value


@settings(deadline=None)
@given(WORD_IDS, WORD_IDS)
def test_rouge_against_torchmetrics(one: list[int], other: list[int]) -> None:
    from torchmetrics.functional.text.rouge import rouge_score

    reading, truth = (" ".join(WORDS[i] for i in ids) for ids in (one, other))
    if len(text.words(truth)) < 2:
        return
    theirs = rouge_score(reading, truth, rouge_keys=("rouge1", "rouge2", "rougeL"))
    for order in ("1", "2", "L"):
        assert score(f"rouge{order}", reading, truth) == pytest.approx(float(theirs[f"rouge{order}_fmeasure"]))


def test_rouge_by_hand() -> None:
    reading, truth = "the film was kind", "the slow film was"
    assert score("rouge1", reading, truth) == pytest.approx(3 / 4)
    assert score("rouge2", reading, truth) == pytest.approx(1 / 3)
    assert score("rougeL", reading, truth) == pytest.approx(3 / 4)
    assert score("token_accuracy", reading, truth) == pytest.approx(1 / 4)
    assert score("token_f1", reading, truth) == pytest.approx(3 / 4)
    assert score("exact_match", reading, truth) == 0.0 and score("exact_match", truth, truth) == 1.0


def test_places_are_the_truths() -> None:
    assert score("token_accuracy", "the film", "the film was slow") == 0.5
    assert score("token_accuracy", "the film was slow", "the film") == 1.0
    assert score("token_accuracy", "film the was slow", "the film was slow") == 0.5


@pytest.mark.parametrize("name", ["exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy", "token_f1"])
@pytest.mark.parametrize("truth", ["", "film", ".", "ünïcödé", "我 们", "___"])
def test_short_and_foreign_sentences_can_be_read(name: str, truth: str) -> None:
    assert score(name, truth, truth) == 1.0
    assert score(name, "something else", truth) == 0.0
    if truth:
        assert score(name, "", truth) == 0.0


def test_words_are_the_packages_in_plain_english() -> None:
    from rouge_score.tokenize import tokenize

    for line in ("Don't stop: 3_4 o'clock, e.g. now!", "[CLS] un ##believ ##able [SEP]", "  ", "a--b"):
        assert text.words(line) == tokenize(line, None)


def test_spaces_do_not_make_another_sentence() -> None:
    assert text.same(" the  film\n", "the film") and not text.same("the film", "thefilm")


def test_lamp_counts_the_frame() -> None:
    reading, truth = "slow children", "the film"
    assert score("rouge1", reading, truth) == 0.0
    assert score("lamp_rouge1", reading, truth) == pytest.approx(2 / 4)
    assert score("lamp_rougeL", reading, truth) == pytest.approx(2 / 4)
    assert score("lamp_rouge2", truth, truth) == 1.0
    assert score("lamp_rouge2", "the kind", "the film") == pytest.approx(1 / 3)


def test_grab_lets_truths_share_the_best_guess() -> None:
    truths = [said("the film was slow"), said("the film was kind")]
    readings = [said("children ran but"), said("the film was")]
    assert metric("rouge1")(readings, truths)[0] == 0.0
    for order, value in (("1", 6 / 7), ("2", 4 / 5), ("L", 6 / 7)):
        assert metric(f"grab_rouge{order}")(readings, truths) == pytest.approx([value, value])
    assert metric("grab_rouge2")([said("film")], [said("film")]) == [0.0]


def test_only_two_of_them_judge_and_one_leads() -> None:
    names = ["exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy", "token_f1", "label_accuracy",
             *(f"{who}_rouge{order}" for who in ("lamp", "grab") for order in "12L")]
    assert {name: m.leak_at for name in names if (m := metric(name)).leak_at} == {"exact_match": 1.0, "rougeL": 0.5}
    assert metric("rougeL(leak_at=0.8)").leak_at == 0.8
    followed = lead([metric(name) for name in names])
    assert followed is not None and followed.name == "rougeL"
    followed = lead([metric(name) for name in ("label_accuracy", "ssim", "psnr")])
    assert followed is not None and followed.name == "ssim"
    assert lead([metric("label_accuracy")]) is None


def test_an_exact_reading_counts_whatever_a_blind_guess_scores() -> None:
    def read(exact: float, ordered: float, blind: float) -> bool:
        scores = {"exact_match": [exact], "rougeL": [ordered]}
        floor = {"exact_match": [float(blind == 1)], "rougeL": [blind]}
        (found,) = leaked(scores, floor, [metric("exact_match"), metric("rougeL")])
        return found

    assert read(1.0, 1.0, 1.0) and read(0.0, 0.6, 0.3)
    assert not read(0.0, 0.6, 0.5) and not read(0.0, 0.4, 0.0)


def test_a_missing_package_is_said_with_its_remedy(monkeypatch) -> None:
    text._scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    for name in ("rouge1", "lamp_rougeL", "grab_rouge2"):
        with pytest.raises(Unscored, match=r"pip install 'gradleak\[text\]'$"):
            score(name, "the film", "the film")
    assert score("exact_match", "the film", "the film") == 1.0


def test_metrics_of_the_other_kind_are_unscored() -> None:
    images, sentences = torch.rand(2, 3, 8, 8), [said("the film"), said("was slow")]
    with pytest.raises(Unscored, match="compares sentences"):
        metric("rougeL")(images, images)
    with pytest.raises(Unscored, match="compares images"):
        metric("psnr")(sentences, sentences)


def _longest(one: list[int], other: list[int]) -> int:
    """By trying every subsequence."""
    def within(part: tuple[int, ...]) -> bool:
        rest = iter(other)
        return all(token in rest for token in part)

    return max(n for n in range(len(one) + 1) if any(within(part) for part in combinations(one, n)))


SHORT = st.lists(st.integers(0, 3), max_size=7)


@given(SHORT, SHORT)
def test_longest_common_subsequence(one: list[int], other: list[int]) -> None:
    assert in_order(one, other) == in_order(other, one) == _longest(one, other)


def test_rows_of_tokens_find_their_truth() -> None:
    truths = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 9, 2, NOTHING], [1, 5, 9, 2, NOTHING]])
    readings = torch.tensor([[1, 5, 9, 2, NOTHING, NOTHING], [1, 6, 7, 4, 4, 2], [1, 8, 8, 9, 2, NOTHING]])
    assert assign(readings, truths) == [1, 2, 0]
    assert assign(readings[:, :5], truths) == [1, 2, 0]


def test_every_truth_has_a_guess_of_its_own() -> None:
    truths = torch.tensor([[1, 5, 6, 2], [1, 5, 7, 2]])
    assert sorted(assign(torch.tensor([[1, 5, 6, 2], [1, 5, 6, 2]]), truths)) == [0, 1]
    assert sorted(assign(torch.full((2, 3), NOTHING), truths)) == [0, 1]


def test_what_the_order_leaves_open_the_tokens_decide() -> None:
    truths = torch.tensor([[5, 6, 7], [8, 9, 4]])
    # Each guess shares one token in order with either truth; the first holds all of the second truth, reversed.
    readings = torch.tensor([[4, 9, 8], [7, 6, 5]])
    assert assign(readings, truths) == [1, 0]
    readings = torch.tensor([[5, 4, 9], [8, 6, 7]])
    assert assign(readings, truths) == [1, 0]


def test_what_cannot_be_assigned_is_refused() -> None:
    tokens = torch.tensor([[1, 2], [3, 4]])
    for readings, truths in ((tokens[:1], tokens), (tokens.float(), tokens), (tokens, tokens.float())):
        with pytest.raises(ValueError, match="guesses for"):
            assign(readings, truths)
