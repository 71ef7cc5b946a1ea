"""What several tests stand on: tiny worlds, and observations made from them."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gradleak import registry
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Client, Defense, Observation, Secret
from gradleak.world.round import Sent, send
from gradleak.world.task import World

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def fits_of_its_own(tmp_path_factory) -> Iterator[None]:
    """What learned attacks keep must not outlive the tests, nor come from before them."""
    before = os.environ.get("GRADLEAK_CACHE")
    os.environ["GRADLEAK_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("GRADLEAK_CACHE")
    os.environ |= {} if before is None else {"GRADLEAK_CACHE": before}

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "in",
          "rain", "sun", "is", "was", "good", "bad", "very", "not", "and", "it", "he", "she", "big", "old", "new",
          "day", "house", "tree", "up", ".", ","]
PAIRS = ["<s>", "<pad>", "</s>", "<|endoftext|>"]
REMARKS = """good\tthe cat sat on the mat .
bad\tit was a very bad day , not good
good\tthe big old dog ran
bad\tnot good
good\tshe ran up the old tree
bad\tin the rain he was old
"""


@pytest.fixture(scope="session")
def open_world() -> Callable[..., World]:
    @cache
    def opened(spec: str = "image(model=lenet, data=photos(size=16, count=40))") -> World:
        return registry.build("task", parse(spec)).open(Rng(3))  # type: ignore[no-any-return]

    return opened


class Scene:
    """One played round, with both sides of the wall in view of the test."""

    def __init__(self, world: World, defense: Defense, who: str, count: int, client: str, trial: int) -> None:
        self.world, self.defense = world, defense
        self.part = registry.build("client", parse(client))
        self.client: Client = self.part.of(world.learner)
        self.secret: Secret = world.draw(count, trial, self.part, Rng(5))
        self.sent: Sent = send(world, self.part, self.client, defense, self.secret, Rng(6) / trial)
        self.seen: Observation = threat(who).observe(self.sent.release, self.client, defense)


@pytest.fixture
def play(open_world: Callable[..., World]) -> Callable[..., Scene]:
    def played(
        defense: str = "none", who: str = "informed", count: int = 1, client: str = "one_step", trial: int = 0,
        task: str = "image(model=lenet, data=photos(size=16, count=40))",
    ) -> Scene:
        return Scene(open_world(task), registry.build("defense", parse(defense)), who, count, client, trial)

    return played


def _tokenizer(library: Any, family: str) -> Any:
    """Whole words for BERT, pairs of bytes for the others."""
    if family == "bert":
        return library.BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}, model_max_length=24)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    pairs.train_from_iterator([" ".join(PIECES[5:])], trainers.BpeTrainer(
        vocab_size=300, special_tokens=PAIRS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    special = {"eos_token": "<|endoftext|>"}
    if family == "roberta":
        pairs.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        special = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>",
                   "eos_token": "</s>"}
    return library.PreTrainedTokenizerFast(tokenizer_object=pairs, model_max_length=24, **special)


def _net(library: Any, family: str, words: int, width: int) -> Any:
    spread = {"initializer_range": 0.15}  # with the library's 0.02 the order of words would hardly matter
    shape = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width,
             "vocab_size": words, **spread}
    if family == "bert":
        return library.BertModel(library.BertConfig(max_position_embeddings=24, **shape))
    if family == "roberta":
        return library.RobertaModel(library.RobertaConfig(
            max_position_embeddings=26, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1, **shape),
            add_pooling_layer=False)
    return library.GPT2Model(library.GPT2Config(
        vocab_size=words, n_positions=24, n_embd=width, n_layer=2, n_head=2, bos_token_id=3, eos_token_id=3,
        **spread))


@pytest.fixture(scope="session")
def text_task(tmp_path_factory) -> Callable[..., str]:
    """The text of a task with a tiny random model of a family (bert, roberta, gpt2): two layers, few words."""
    library = pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("tiny")
    file = folder / "remarks.tsv"
    file.write_text(REMARKS)

    @cache
    def saved(family: str, width: int) -> Path:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            tokenizer = _tokenizer(library, family)
            _net(library, family, len(tokenizer), width).save_pretrained(folder / f"{family}{width}")
        tokenizer.save_pretrained(folder / f"{family}{width}")
        return folder / f"{family}{width}"

    def task(family: str = "bert", more: str = "", width: int = 32) -> str:
        pad = ", pad='<|endoftext|>'" if family == "gpt2" else ""
        return f"text(model=hf('{saved(family, width)}'{pad}), data=lines('{file}'){more})"

    return task
