"""All that a first layer can be given: a vector for every token in every place."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.attacks.exact.asking import reached
from gradleak.attacks.exact.span import least_squares
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.tap import Untapped
from gradleak.types import Observation, Vocabulary

FAR = 1e8
"""So many times longer than words: what is added to such a vector is lost in rounding."""

BLOCK = 16
"""Places whose tables are made together."""

CLOSE = 1e-4
"""Relative difference up to which the formula is what the model computes."""


class Dictionary:
    """e(v, p) = gain * n(word_v + place_p) + shift, with n dividing by the standard deviation, after taking the mean
    away where the model does. Encoders and decoders with learnt places, and those without any, all begin so.
    """

    def __init__(
        self, table: Tensor, centred: bool, places: Tensor, gain: Tensor, shift: Tensor, epsilon: float,
    ) -> None:
        """Words are the rows of `table` (V x d); places (P x d) are already centred where words will be."""
        self.table, self.centred, self.places = table, centred, places
        self.gain, self.shift, self.epsilon, self.width = gain, shift, epsilon, table.shape[1]
        self._words, self._places = self._centred(table.float()), places.float()
        self._gained, self._at, self._shift = self._words * gain.float(), self._places * gain.float(), shift.float()
        self._fixed = [_squares(self._words), _squares(self._gained), self._gained @ self._shift]
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

    def scales(self, place: int) -> Tensor:
        """One over the deviation of every token there (V)."""
        return self._block(place // BLOCK)[0][place % BLOCK]

    def squares(self, place: int) -> Tensor:
        """The squared length of every token's vector there (V)."""
        return self._block(place // BLOCK)[1][place % BLOCK]

    def _block(self, number: int) -> tuple[Tensor, Tensor]:
        """Both for some places (x V) at once, made when first asked for: few sentences are long."""
        if number not in self._blocks:
            here = slice(number * BLOCK, (number + 1) * BLOCK)
            spots, at, (words, gained, shifted) = self._places[here], self._at[here], self._fixed
            variances = (words + _squares(spots)[:, None] + 2 * spots @ self._words.mT) / self.width
            scales = variances.add_(self.epsilon).rsqrt_()
            inside = gained + _squares(at)[:, None] + 2 * at @ self._gained.mT
            across = shifted + (at @ self._shift)[:, None]
            squares = scales.square() * inside + 2 * scales * across + self._shift @ self._shift
            self._blocks[number] = scales, squares
        return self._blocks[number]

    def _centred(self, words: Tensor) -> Tensor:
        return words - words.mean(-1, keepdim=True) if self.centred else words.clone()

    @property
    def placeless(self) -> bool:
        """Whether all places look the same."""
        return bool(self.places.norm(dim=1).max() < CLOSE * self.table.norm(dim=1).mean())

    def words(self, tokens: Tensor) -> Tensor:
        """Words as they are added to places, in float64."""
        return self._centred(self.table[tokens].double())

    def vectors(self, tokens: Tensor, places: Tensor) -> Tensor:
        """e(v, p) in float64, for any shape of tokens and places."""
        x = self.words(tokens) + self.places[places]
        scale = (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return x * scale * self.gain + self.shift

    def along(self, directions: Tensor) -> Callable[[int], Tensor]:
        """A function of the place: every token's vector there in the given directions (d x m), V x m."""
        directions = directions.float()
        words, places, shift = (part @ directions for part in (self._gained, self._at, self._shift))
        return lambda place: torch.addcmul(shift, words + places[place], self.scales(place)[:, None])

    def forms(self, form: Tensor) -> Callable[[int], Tensor]:
        """A function of the place: v^T form v for every token's vector there, `form` symmetric (d x d)."""
        form = form.float()
        words, places, shift = (part @ form for part in (self._gained, self._at, self._shift))
        own, shifted = (words * self._gained).sum(1), words @ self._shift

        def at(place: int) -> Tensor:
            spot, scales = self._at[place], self.scales(place)
            inside = own + 2 * self._gained @ places[place] + spot @ places[place]
            return scales.square() * inside + 2 * scales * (shifted + spot @ shift) + self._shift @ shift

        return at


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum(-1)


@torch.no_grad()
def dictionary(seen: Observation, vocabulary: Vocabulary, layer: str, places: int) -> Dictionary:
    """Found by asking the model, and checked on random tokens."""
    ask = _Asking(seen, vocabulary, layer)
    try:
        centred, gain, shift = ask.normalisation()
    except Untapped as reason:
        raise Unsuited(f"the first layer's inputs cannot be seen: {reason}") from None
    table = vocabulary.table.detach()
    spots, epsilon = ask.spots(places, centred, gain, shift)
    found = Dictionary(table, centred, spots, gain, shift, epsilon)
    tokens = torch.randint(len(table), (1, places), generator=(Rng(0) / "check").torch())
    truth = ask(table[tokens])
    off = (found.vectors(tokens, torch.arange(places)[None]) - truth).norm(dim=-1) / truth.norm(dim=-1)
    if not bool((off < CLOSE).all()):
        raise Unsuited("what enters the first layer is not a normalised sum of a word and its place; this attack reads "
                       "encoders and decoders that begin so (BERT, RoBERTa, GPT-2, Llama and their like)")
    return found


class _Asking:
    """Sends made-up word embeddings in, and sees what reaches the first layer."""

    def __init__(self, seen: Observation, vocabulary: Vocabulary, layer: str) -> None:
        self.seen, self.layer, self.table = seen, layer, vocabulary.table
        self.size = float(vocabulary.table.norm(dim=1).mean()) / vocabulary.table.shape[1] ** 0.5

    def __call__(self, x: Tensor) -> Tensor:
        return reached(self.seen, x.to(self.table), self.layer)[0]

    def normalisation(self) -> tuple[bool, Tensor, Tensor]:
        """Whether it takes the mean away, and its gain and shift: seen on vectors so long that places do not count."""
        width = self.table.shape[1]
        signs = torch.ones(width, dtype=torch.float64)
        signs[1::2] = -1
        standard = signs / signs.std(correction=0)
        up, down = self(torch.stack([signs, -signs])[:, None] * (FAR * self.size))[:, 0]
        gain, shift = (up - down) / (2 * standard), (up + down) / 2
        word = (Rng(0) / "word").normal((width,), self.table).double() * self.size
        one, lifted = self(torch.stack([word, word + self.size])[:, None])[:, 0]
        return bool((one - lifted).norm() < 0.01 * one.norm()), gain, shift

    def spots(self, places: int, centred: bool, gain: Tensor, shift: Tensor) -> tuple[Tensor, float]:
        """What every place adds to a word, from two vectors whose outputs must have it in common; and what the
        normalisation adds to a variance."""
        one = (Rng(0) / "spots").normal((self.table.shape[1],), self.table).double() * self.size
        one = one - one.mean() if centred else one
        seen = (self(torch.stack([one, -one])[:, None].expand(-1, places, -1)) - shift) / _away_from_zero(gain)
        first, second = seen  # a (one + spot) and b (-one + spot), a and b unknown
        sides = torch.stack([first, -second], -1)  # P x d x 2
        lengths = least_squares(sides, (2 * one).expand(places, -1)[..., None])[..., 0]
        spots = first * lengths[:, :1] - one
        variance = (one + spots).square().mean(1)
        epsilon = float((lengths[:, 0].square() - variance).median())
        return spots, epsilon if epsilon > 1e-5 * float(variance.median()) else 0.0


def _away_from_zero(gain: Tensor) -> Tensor:
    least = 1e-6 * gain.abs().max()
    return torch.where(gain.abs() < least, least, gain)
