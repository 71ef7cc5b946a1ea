"""Models of words, called with their embeddings: what is searched for is what goes in."""

import inspect
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Reader(nn.Module):
    """Around a model that takes `inputs_embeds` and `attention_mask`: logits from word embeddings.

    `last` marks a decoder that classifies at its last token: that of the mask, where there is one, as the library does
    when it is given tokens. With `masked` false no mask is heeded: padding counts as words do.
    """

    start: Tensor

    def __init__(self, net: nn.Module, last: bool = False) -> None:
        super().__init__()
        self.net, self.last, self.masked = net, last, True
        self.register_buffer("start", table(self.words), persistent=False)
        places = [m.padding_idx for name, m in net.named_modules()
                  if name.endswith("position_embeddings") and isinstance(m, nn.Embedding)]
        # Some families count places from after the padding's own row.
        self.first = 1 + places[0] if places and places[0] is not None else 0
        takes = inspect.signature((net.base_model if last else net).forward).parameters  # type: ignore[union-attr]
        self.placed = "position_ids" in takes
        self.wide = False
        self.wide = not last and self._takes_wide()

    @property
    def words(self) -> nn.Module:
        """The layer that turns tokens into embeddings."""
        return self.net.get_input_embeddings()  # type: ignore[operator, no-any-return]

    @torch.no_grad()
    def settle(self) -> None:
        """Take the words as they are now for those that enter."""
        self.start.copy_(table(self.words))

    def forward(self, x: Tensor, mask: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """`ids` say which words the embeddings are of: then `x` moves with them as they are trained."""
        if ids is not None:
            x = x + (self.words(ids) - F.embedding(ids, self.start))
        mask = mask if self.masked else None
        count, length = x.shape[:2]
        named = {"inputs_embeds": x, "attention_mask": self._attended(x, mask)}
        if self.placed:
            named["position_ids"] = (torch.arange(length, device=x.device) + self.first).expand(count, length)
        if not self.last:
            out = self.net(**named)
            return out if isinstance(out, Tensor) else out.logits
        scores: Tensor = self.net.score(self.net.base_model(**named)[0])  # type: ignore[operator]
        return scores[:, -1] if mask is None else _at_last(scores, mask)

    def _attended(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """What the net is told of the mask. A decoder needs not be: padding comes last, and no token looks ahead.

        An encoder gets it written out for every pair of tokens if it takes that: to write it out itself, the library
        looks at its values, which cannot be done where many candidates are replayed at once.
        """
        if mask is None or self.last:
            return None
        if not self.wide:
            return mask
        hidden = (1 - mask.to(x)) * torch.finfo(x.dtype).min
        return hidden[:, None, None].expand(-1, 1, mask.shape[1], -1)

    @torch.no_grad()
    def _takes_wide(self) -> bool:
        """Found by trying both on two short rows, one of them padded."""
        was, x = self.training, self.start[torch.arange(6) % len(self.start)].view(2, 3, -1)
        mask = torch.tensor([[1, 1, 1], [1, 1, 0]], device=x.device)
        self.eval()
        try:
            short = self(x, mask)
            self.wide = True
            return torch.allclose(short, self(x, mask), atol=1e-5)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return False
        finally:
            self.train(was)


def _at_last(scores: Tensor, mask: Tensor) -> Tensor:
    last = (mask.long() * torch.arange(mask.shape[1], device=mask.device)).amax(1)
    return scores.gather(1, last[:, None, None].expand(-1, 1, scores.shape[-1])).squeeze(1)


def table(words: nn.Module) -> Tensor:
    """A row a token, as it enters the model; the weight itself where nothing is done to it on the way."""
    if type(words) is nn.Embedding:
        return words.weight.detach()
    weight = next(words.parameters())
    with torch.no_grad():
        return words(torch.arange(len(weight), device=weight.device))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Heads that look back only, with the softmax written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        query, key, value = (layer(x).view(count, length, self.heads, -1).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)).masked_fill(ahead, -1e9)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, width)
        return self.out(mixed)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then two layers, each added to what came in and normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.calm = Attention(width, heads), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.calm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.calm(x + self.attention(x))
        return self.calm2(x + self.narrow(torch.relu(self.wide(x))))  # type: ignore[no-any-return]


class NextWord(nn.Module):
    """A small causal language model; its output layer is the table of its words, its places are sines."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The mask changes nothing: padding comes last, and no place looks ahead."""
        width = inputs_embeds.shape[-1]
        x = inputs_embeds * math.sqrt(width) + _sines(inputs_embeds)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.words.weight)


def _sines(like: Tensor) -> Tensor:
    length, width = like.shape[-2:]
    places = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    pace = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-math.log(1e4) / width))
    return torch.stack([(places * pace).sin(), (places * pace).cos()], -1).flatten(1)[:, :width]
