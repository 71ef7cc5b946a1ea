"""How natural a sentence reads, before any update is seen: nats per word, lower is more natural."""

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradleak.attacks.parts.english import CLOSE, OPEN, English, Learnt, misplaced, parts, tidy, words
from gradleak.errors import UsageError
from gradleak.hub import INSTALL, found, library
from gradleak.registry import kind_of, register

NEEDS = "this language model needs"
EMPTY = 50.0
"""What a text without a word costs: more than any sentence does."""
REMEMBERED = 2**16
"""Texts whose cost is kept: a search meets the same ones again and again."""
LOGITS = 2**25
"""Entries of a language model's largest output held at a time."""
LARGEST = 200 * 2**20
"""Bytes of the longest file to learn from."""


class LanguagePrior(Protocol):
    """Mean cost of each text, in nats per word or mark (float64).

    What a text is divided by hardly changes when its tokens change places, so that orders are compared by likelihood
    alone: a word broken into more tokens must not look cheaper for it.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, texts: Sequence[str]) -> Tensor: ...


kind_of(LanguagePrior, "prior")


@register("prior", "none")
@dataclass(frozen=True)
class Silent:
    """Every text reads alike."""

    @property
    def name(self) -> str:
        return repr(self)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.zeros(len(texts), dtype=torch.float64)


@register("prior", "ngram")
@dataclass(frozen=True)
class Ngram:
    """Pairs of English words, counted in a trillion words of the web; needs no download.

    With `file`, a UTF-8 text like those attacked, also its triples of words. A text of another kind helps little.
    """

    file: str | None = None

    @property
    def name(self) -> str:
        return repr(self)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        cost = _costs(self.file)
        return torch.tensor([cost(text) for text in texts], dtype=torch.float64)


@cache
def _costs(file: str | None) -> Callable[[str], float]:
    """The cost of a text, with all that is counted loaded once."""
    english = _english()
    learnt = None if file is None else Learnt(english, _text(file))

    def cost(text: str) -> float:
        found = words(text)
        if not found:
            return EMPTY
        earlier, before, nats = OPEN, OPEN, 3.0 * misplaced(text, english)
        for word in (*found, CLOSE):
            chance = english.chance(before, word) if learnt is None else learnt.chance(earlier, before, word)
            nats -= math.log(max(chance, 1e-14))
            earlier, before = before, word
        return nats / parts(text)

    return lru_cache(REMEMBERED)(cost)


@cache
def _english() -> English:
    found = importlib.util.find_spec("symspellpy")
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"the counts of English words come with symspellpy, which is not installed: {INSTALL}")
    folder = Path(found.submodule_search_locations[0])
    names = ("frequency_dictionary_en_82_765.txt", "frequency_bigramdictionary_en_243_342.txt")
    try:
        singles, pairs = ((folder / name).read_text("utf-8-sig").split() for name in names)
    except OSError as problem:
        raise UsageError(f"{problem.filename}: {problem.strerror}; install symspellpy again: {INSTALL}") from None
    # The pairs' counts are 64 times those of the single words.
    counts = np.array(pairs[2::3], np.float64) / 64
    return English(dict(zip(singles[::2], map(int, singles[1::2]), strict=True)), pairs[::3], pairs[1::3], counts)


def _text(file: str) -> str:
    path = Path(file)
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UsageError(f"{file}: {size >> 20} MB of text, at most {LARGEST >> 20} MB are read; give a part of it")
        text = path.read_text("utf-8")
    except OSError as problem:
        raise UsageError(f"{file}: {problem.strerror}; ngram(file=...) takes a text file") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{file}: not UTF-8 at byte {problem.start}; save it as UTF-8") from None
    if not any(words(line) for line in text.splitlines()):
        raise UsageError(f"{file}: there is no word in it; ngram(file=...) takes a text like those attacked")
    return text


@register("prior", "hf")
@dataclass(frozen=True)
class Causal:
    """Any causal language model that transformers loads, by its name on the hub or its folder; reads whole sentences
    and needs seconds where pairs of words need milliseconds.

    A folder with one GGUF file will do as well; `gguf` names the file where there are more, or on the hub.
    """

    model: str
    gguf: str | None = None

    @property
    def name(self) -> str:
        return repr(self)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        costs = _reader(self.model, self.gguf).costs(texts)
        return torch.tensor(costs, dtype=torch.float64)


@register("prior", "screened")
@dataclass(frozen=True)
class Screened:
    """Show only the `keep` texts that `first` likes best to `second`; the others rank behind them, as `first` has it.

    Nearly as good as `second` at a fraction of the time. The numbers compare texts of one call, not of different ones.
    """

    second: LanguagePrior
    first: LanguagePrior = Ngram()
    keep: int = 20

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise UsageError(f"screened(keep={self.keep}): nothing would be left to read; keep at least 1")

    @property
    def name(self) -> str:
        return repr(self)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        quick = self.first(texts)
        kept = quick.argsort(stable=True)[: self.keep]
        if not len(kept):
            return quick
        slow = self.second([texts[int(i)] for i in kept])
        costs = quick - quick[kept].max() + slow.max()
        costs[kept] = slow
        return costs


@final
class Reader:
    """A causal model and its tokenizer."""

    def __init__(self, net: Any, tokenizer: Any) -> None:
        self.net, self.tokenizer = net.eval(), tokenizer
        # A chat model's own opening is followed by a name of who speaks; what lies between two texts is not.
        between = tokenizer.get_vocab().get("<|endoftext|>")
        openings = (between, tokenizer.bos_token_id, tokenizer.eos_token_id)
        self.opening = [token for token in openings if token is not None][:1]
        self.longest = getattr(net.config, "max_position_embeddings", None) or 1024
        self.known: dict[str, float] = {}

    def costs(self, texts: Sequence[str]) -> list[float]:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if len(self.known) + len(new) > REMEMBERED:
            self.known.clear()
            new = list(dict.fromkeys(texts))
        for text, nats in zip(new, self._nats(new), strict=True):
            # Rounded, as the last digits depend on which texts were read together.
            self.known[text] = round(nats / parts(text), 4) if words(text) and math.isfinite(nats) else EMPTY
        return [self.known[text] for text in texts]

    def _nats(self, texts: Sequence[str]) -> list[float]:
        """The cost of each text and of its end, which a new line shows."""
        rows = [self._encoded(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        nats = [math.nan] * len(rows)
        while order and len(rows[order[0]]) > 1:
            many = max(1, LOGITS // (len(rows[order[0]]) * int(self.net.config.vocab_size)))
            for i, value in zip(order[:many], self._summed([rows[i] for i in order[:many]]), strict=True):
                nats[i] = value
            order = order[many:]
        return nats

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(tidy(text) + "\n", add_special_tokens=False)
        return [*self.opening, *ids][: self.longest]

    @torch.no_grad()
    def _summed(self, rows: Sequence[Sequence[int]]) -> list[float]:
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        ids, mask = ids.to(self.net.device), mask.to(self.net.device)
        logits = self.net(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        each = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none") * mask[:, 1:]
        return [float(value) for value in each.double().sum(1)]


@lru_cache(2)
def _reader(model: str, gguf: str | None) -> Reader:
    place, file = _place(model, gguf)
    remedy = ("give the folder of a causal model as save_pretrained writes it (safetensors, tokenizer included), or "
              "use prior=ngram")
    return found(place, f"hf({model!r})", NEEDS, remedy, lambda local: Reader(*_loaded(place, file, local)))


def _place(model: str, gguf: str | None) -> tuple[str, str | None]:
    """The folder or name, and the GGUF file in it if that is what it holds."""
    path = Path(model)
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), path.name
    if gguf is None and path.is_dir() and not any(path.glob("*.safetensors")):
        there = sorted(file.name for file in path.glob("*.gguf"))
        if len(there) > 1:
            raise UsageError(f"hf({model!r}): {len(there)} GGUF files; choose one, as in gguf={there[0]!r}")
        gguf = there[0] if there else None
    return model, gguf


def _loaded(place: str, gguf: str | None, local: bool) -> tuple[Any, Any]:
    """By the library's own rules: no code and no pickles from the folder or the hub."""
    transformers = library("transformers", NEEDS)
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    if gguf is not None:
        for part in ("gguf", "accelerate"):
            library(part, NEEDS, "pip install gguf accelerate")
        options["gguf_file"] = gguf
    net = transformers.AutoModelForCausalLM.from_pretrained(place, use_safetensors=True, dtype=torch.float32, **options)
    return net, transformers.AutoTokenizer.from_pretrained(place, **options)
