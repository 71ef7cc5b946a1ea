"""What a tokenizer knows, as everyone who holds the model knows it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.types import Vocabulary

UNUSED = re.compile(r"\[unused\d+\]")


class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of transformers answer it."""

    all_special_ids: list[int]
    pad_token_id: int | None
    model_max_length: int

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool) -> str: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Spelling:
    """Tokens to text and back."""

    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """With what frames a sentence."""
        return list(self.tokenizer.encode(text))

    def spell(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)

    def piece(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token) or "")


def vocabulary(tokenizer: Tokenizer, table: Tensor, pad: str | None, name: str) -> Vocabulary:
    """`pad` names a token to pad with where the tokenizer has none; `name` is what an error calls the model."""
    spelling = Spelling(tokenizer)
    opening, closing = _frame(tokenizer, name)
    pieces = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), len(table)))))
    usable = torch.zeros(len(table), dtype=torch.bool)
    usable[: len(pieces)] = torch.tensor([piece is not None and not UNUSED.fullmatch(piece) for piece in pieces])
    usable[[token for token in tokenizer.all_special_ids if token < len(table)]] = False
    return Vocabulary(table, usable, opening, closing, _padding(tokenizer, pad, pieces, name), spelling.spell,
                      spelling.piece)


def _frame(tokenizer: Tokenizer, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and after every sentence, read off one."""
    framed, plain = list(tokenizer.encode("a")), list(tokenizer.encode("a", add_special_tokens=False))
    for first in range(len(framed) - len(plain) + 1):
        if plain and framed[first : first + len(plain)] == plain:
            return tuple(framed[:first]), tuple(framed[first + len(plain) :])
    raise UsageError(f"{name}: its tokenizer does not frame a sentence with tokens before and after it; "
                     "use a tokenizer of the transformers library")


def _padding(tokenizer: Tokenizer, pad: str | None, pieces: list[str | None], name: str) -> int | None:
    if pad is None:
        return tokenizer.pad_token_id
    if pad not in pieces:
        raise UsageError(f"{name}: pad={pad!r} is not a token of its vocabulary; name one that is, such as "
                         f"{tokenizer.convert_ids_to_tokens(tokenizer.all_special_ids[:1] or [0])[0]!r}")
    return pieces.index(pad)
