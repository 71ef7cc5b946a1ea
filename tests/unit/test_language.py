"""Language priors: natural order wins, whatever the tokenizer left of it."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import registry
from gradleak.attacks.parts import language
from gradleak.attacks.parts.english import CLOSE, OPEN, Counts, misplaced, parts, tidy, words
from gradleak.attacks.parts.language import EMPTY, Causal, LanguagePrior, Ngram, Screened, Silent
from gradleak.errors import UsageError
from gradleak.spec import parse

ORDERS = [
    ("the cat sat on the mat .", "cat the sat on the mat .", "the cat sat the on mat .", "the cat sat on the . mat"),
    ("i don ' t like this movie .", "i don t ' like this movie .", "don ' t i like this movie ."),
    ("john said that mary left early .", "said john that mary left early .", "john said that mary left . early"),
    ("she gave the book to her friend", "she gave book the to her friend", "friend gave the book to she her"),
    ("we played with marbles .", "##s we played with marble .", "we played withs marble ."),
    ("it cost $ 1 , 000 last year .", "it cost 1 , $ 000 last year .", "it cost , 000 $ 1 last year ."),
]


def build(spec: str) -> LanguagePrior:
    prior: LanguagePrior = registry.build("prior", parse(spec))
    return prior


@pytest.mark.parametrize("spec", ["ngram", "none", "ngram(file='a b.txt')", "hf(model=gpt2)",
                                  "screened(second=hf(model=gpt2), first=ngram, keep=5)"])
def test_priors_are_built_from_the_grammar_and_named_by_it(spec: str) -> None:
    prior = build(spec)
    assert prior.name == repr(prior) == spec
    assert build(prior.name) == prior and hash(build(prior.name)) == hash(prior)


def test_a_positional_model_will_do() -> None:
    assert build("hf('gpt2')") == Causal("gpt2")
    assert build("screened(hf('gpt2'))") == Screened(Causal("gpt2"))


@pytest.mark.parametrize("orders", ORDERS, ids=lambda orders: orders[0])
def test_ngram_prefers_the_natural_order(orders: tuple[str, ...]) -> None:
    costs = Ngram()(orders)
    assert costs.dtype == torch.float64 and costs.shape == (len(orders),)
    assert bool((costs[1:] > costs[0]).all()), costs


@pytest.mark.parametrize("better, worse", [
    ("The dog chased the cat.", "the cat chased The dog."),
    ("This is London.", "this is London."),
    ("She met John. He left.", "She met John. he He left."),
])
def test_ngram_heeds_capitals_where_there_are_any(better: str, worse: str) -> None:
    costs = Ngram()([better, worse])
    assert costs[0] < costs[1]
    english = language._english()
    assert misplaced(better, english) == 0
    assert misplaced(better.lower(), english) == 0


def test_words_and_marks_as_tokenizers_leave_them() -> None:
    assert words("They don ' t , can't or WON ’ T .") == [
        "they", "do", "not", ",", "can", "not", "or", "will", "not", "."]
    assert words("it ' s john ' s , i ' ll") == ["it", "is", "john", "'s", ",", "i", "will"]
    assert words("$ 1 , 000 or 3 . 5 ##ab") == ["0", "or", "0", "##ab"]
    assert parts("don ' t ##s .") == parts("##s . ' don t") == 5
    assert tidy("i said i don ' t .") == "I said I don't."
    assert tidy("Dogs bark .") == "Dogs bark."
    assert tidy("bark Dogs .") == "bark Dogs."


def test_nothing_to_read_costs_much_and_nothing_breaks() -> None:
    odd = ["a", "。！", "###", "_", "'", "x" * 5000, "naïve café", "0" * 30, "'s", "\x00 \ud800"]
    costs = Ngram()(["", "   ", "\n", *odd])
    assert bool(costs.isfinite().all())
    assert costs[:3].tolist() == [EMPTY] * 3
    assert Ngram()([]).shape == (0,)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_text_has_a_finite_cost_of_its_own(texts: list[str]) -> None:
    together = Ngram()(texts)
    assert bool(together.isfinite().all()) and bool((together >= 0).all())
    assert together.tolist() == [float(Ngram()([text])) for text in texts]


@pytest.mark.parametrize("before", [OPEN, "the", "john", "'s", "said", "quickly"])
def test_chances_of_what_comes_next_add_up_to_about_one(before: str) -> None:
    """Names and rare words borrow the company of others, so the sum is not one to the digit."""
    english = language._english()
    following = sum(english.chance(before, word) for word in english.place)
    assert 0.5 < following < 1.5


def test_names_and_kinds_come_out_of_the_counts() -> None:
    english = language._english()
    assert {"john", "mary", "london", "monday"} <= english.names
    assert not {"the", "dog", "happy", "went"} & english.names
    assert english.kind("three") == english.kind("four") != english.kind("of")
    assert english.kind("john") == english.kind("zzyzx") == english.KINDS
    assert english.chance("very", "happy") > 20 * english.chance("the", "happy")


def test_loading_and_reading_are_quick() -> None:
    language._english.cache_clear()
    language._costs.cache_clear()
    began = time.process_time()
    Ngram()(["Load."])
    loaded = time.process_time()
    new = sorted(language._english().names)[:200]
    Ngram()([f"{word} little dog went to the market and bought {word}s ." for word in new])
    assert loaded - began < 1.5
    assert time.process_time() - loaded < 0.5


def test_counts_against_a_plain_count() -> None:
    stream = torch.tensor([0, 0, 2, 3, 2, 3, 4, 1, 0, 0, 2, 4, 1]).numpy()
    counts = Counts(stream, 6, 0, discount=0.5)
    after_2 = (2 - 0.5 + (0.5 * 2 + 1) * 0.1) / (3 + 1)  # 2 is followed by 3, 3 and 4
    assert counts.chance(5, 2, 3, 0.1, (1, 1)) == pytest.approx(after_2)
    after_3_2 = (1 - 0.5 + (0.5 * 1 + 2) * after_2) / (1 + 2)
    assert counts.chance(3, 2, 3, 0.1, (1, 2)) == pytest.approx(after_3_2)
    assert counts.chance(5, 5, 3, 0.1, (1, 1)) == 0.1
    total = sum(counts.chance(0, 0, c, 1 / 5, (1, 1)) for c in range(1, 6))
    assert total == pytest.approx(1)


def test_a_file_bends_the_prior_towards_itself(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Quax the blorp went frobbing.\nWe saw quax the blorp .\n" * 20, "utf-8")
    learnt = Ngram(str(file))
    told = ["quax the blorp went frobbing .", "blorp the quax went frobbing ."]
    assert float(learnt(told)[0]) < float(Ngram()(told)[0]) - 1
    assert learnt(told)[0] < learnt(told)[1]
    for orders in ORDERS[:3]:
        costs = learnt(orders)
        assert bool((costs[1:] > costs[0]).all())
    assert learnt([""]).tolist() == [EMPTY]


def test_files_that_cannot_be_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latin, empty, large = tmp_path / "latin.txt", tmp_path / "empty.txt", tmp_path / "large.txt"
    latin.write_bytes("café".encode("latin-1"))
    empty.write_text(" \n\n", "utf-8")
    large.write_text("a few words\n", "utf-8")
    missing = tmp_path / "none.txt"
    wrong = {latin: "not UTF-8 at byte 3", missing: "No such file", tmp_path: "directory", empty: "no word"}
    for file, reason in wrong.items():
        with pytest.raises(UsageError, match=reason):
            Ngram(str(file))(["a"])
    monkeypatch.setattr(language, "LARGEST", 5)
    with pytest.raises(UsageError, match="at most"):
        Ngram(str(large))(["a"])


def test_missing_counts_end_in_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    language._english.cache_clear()
    language._costs.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'gradleak\[text\]'$"):
        Ngram()(["a"])


def test_none_says_nothing() -> None:
    assert Silent()(["a", ""]).tolist() == [0, 0]


def test_import_stays_light() -> None:
    code = ("import sys, gradleak.attacks.parts.language; "
            "assert not {'transformers', 'symspellpy', 'huggingface_hub'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)


@dataclass(frozen=True)
class ByLength:
    """Long texts read badly."""

    sign: int = 1
    name: str = "by length"

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        return torch.tensor([self.sign * float(len(text)) for text in texts], dtype=torch.float64)


def test_screened_ranks_the_kept_by_the_second_and_the_rest_behind() -> None:
    texts = ["aaaa", "a", "aa", "aaaaaa", "aaa"]
    costs = Screened(ByLength(-1), ByLength(), keep=3)(texts)
    assert costs.argsort().tolist() == [4, 2, 1, 0, 3]
    assert costs[[1, 2, 4]].tolist() == [-1, -2, -3]
    assert Screened(ByLength(-1), ByLength(), keep=9)(texts).tolist() == ByLength(-1)(texts).tolist()
    assert Screened(ByLength(), ByLength())([]).shape == (0,)
    with pytest.raises(UsageError, match="at least 1"):
        Screened(ByLength(), keep=0)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal model with a tokenizer of its own, random weights."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("gpt2")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(["the cat sat on the mat and the dog ran to the house .\n"] * 9, 300,
                            special_tokens=["<|endoftext|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=48, n_embd=16, n_layer=2, n_head=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = transformers.GPT2LMHeadModel(config)
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_hf_gives_the_models_own_likelihood(gpt2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    texts = ["the cat sat on the mat .", "the dog", "mat", "the cat sat on the mat and the dog ran ."]
    costs = Causal(str(gpt2))(texts)
    assert costs.dtype == torch.float64
    net = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    for text, cost in zip(texts, costs.tolist(), strict=True):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(tidy(text) + "\n", add_special_tokens=False)]])
        with torch.no_grad():
            mean = net(input_ids=ids, labels=ids).loss
        assert cost == pytest.approx(float(mean) * (ids.shape[1] - 1) / parts(text), abs=2e-4)


def test_hf_remembers_and_does_not_depend_on_company(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prior, texts = Causal(str(gpt2)), ["the house", "the dog ran to the house", "the house"]
    language._reader.cache_clear()
    together = prior(texts)
    reader = language._reader(str(gpt2), None)
    assert set(reader.known) == set(texts)
    language._reader.cache_clear()
    assert torch.allclose(together, torch.cat([prior([text]) for text in texts]), atol=2e-4)
    monkeypatch.setattr(language, "REMEMBERED", 1)
    assert torch.allclose(together, prior(texts), atol=2e-4)
    monkeypatch.setattr(language, "LOGITS", 1)
    language._reader.cache_clear()
    assert torch.allclose(together, prior(texts), atol=2e-4)


def test_hf_reads_what_is_empty_and_what_is_too_long(gpt2: Path) -> None:
    costs = Causal(str(gpt2))(["", "the cat " * 100, "\n"])
    assert costs[0] == costs[2] == EMPTY and bool(costs.isfinite().all())
    assert Causal(str(gpt2))([]).shape == (0,)


def test_hf_without_a_model_says_what_to_do(tmp_path: Path, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"cannot be loaded.*prior=ngram"):
        Causal(str(tmp_path))(["a"])
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"choose one, as in gguf='a.gguf'"):
        Causal(str(tmp_path))(["a"])
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(self: object, repo: str, timeout: float) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    with pytest.raises(UsageError, match=r"cannot be had from the hub \(Name or service not known\).*prior=ngram"):
        Causal("nobody/no-such-model")(["a"])


def test_hf_reads_no_pickles(gpt2: Path, tmp_path: Path) -> None:
    for file in gpt2.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"cannot be loaded.*safetensors"):
        Causal(str(tmp_path))(["a"])


def test_a_gguf_file_is_found_and_what_it_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    assert language._place(str(tmp_path), None) == language._place(str(file), None) == (str(tmp_path), file.name)
    (tmp_path / "model.safetensors").touch()
    assert language._place(str(tmp_path), None) == (str(tmp_path), None)
    assert language._place("someone/small", "small.gguf") == ("someone/small", "small.gguf")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(UsageError, match=r"pip install gguf accelerate$"):
        Causal(str(file))(["a"])


def test_the_end_of_a_sentence_is_read(gpt2: Path) -> None:
    reader = language._reader(str(gpt2), None)
    assert reader._encoded("the cat")[-1] == reader.tokenizer.encode("\n", add_special_tokens=False)[-1]
    assert language._english().chance("cat", CLOSE) > language._english().chance("the", CLOSE)
