"""A search that takes minutes can be stopped after any turn, says what it has, and goes on to the same end."""

import pytest
import torch

from gradleak.attacks.exact import crowd, settling
from gradleak.attacks.exact.course import _packed, _unpacked
from gradleak.attacks.exact.gaps import Seated
from gradleak.attacks.exact.judge import Company, Judge
from gradleak.attacks.exact.seating import seating
from gradleak.attacks.exact.settling import Turn
from gradleak.attacks.exact.subspace import Words
from gradleak.audit.plan import Audit
from gradleak.audit.run import run_cell
from gradleak.audit.store import CellDir
from gradleak.rng import Rng

pytest.importorskip("transformers")


def test_what_a_turn_leaves_is_kept_whole():
    turn = Turn(Company(((5, 6, 7), (5, 8)), (1, 0)), 1 / 3, 4, 2, frozenset({(5, 8)}))
    none = Turn(Company(((5, 6),), None), -2.0, 1, 0, frozenset())
    assert _unpacked(_packed({"a": turn, "b c": none})) == {"a": turn, "b c": none}
    assert _unpacked({"x": torch.zeros(3)}) == {}


@pytest.mark.parametrize(("defense", "count"), [("noise(relative=0.3)", 3), ("prune(keep=0.1)", 2)])
def test_a_search_goes_on_where_it_stood(play, text_task, monkeypatch, defense: str, count: int):
    """Neither sifting nor what was explained ends it early: there are always turns to stop after."""
    seen = play(defense, "curious", count, "one_step(mode=eval)", task=text_task("bert", "", 64)).seen
    monkeypatch.setattr(crowd, "sifted", lambda search, pool, lengths: Seated(
        lengths, tuple(seating(search, pool, lengths).best()[0])))
    monkeypatch.setattr(Judge, "entire", lambda self, score: False)
    monkeypatch.setattr(settling, "ROUNDS", 5)
    whole = list(Words().guesses(seen, Rng(1)))
    assert len(whole) > 3
    assert whole[-1].step == whole[-1].steps and all(guess.step < guess.steps for guess in whole[:-1])
    for number in {1, len(whole) // 2}:  # the first is a draft, before any turn
        rest, expected = list(Words().guesses(seen, Rng(1), whole[number])), whole[number + 1 :]
        assert [guess.step for guess in rest] == [guess.step for guess in expected]
        for again, before in zip(rest, expected, strict=True):
            assert torch.equal(again.reading, before.reading)
            assert again.notes == before.notes and [*again.state] == [*before.state]


def test_a_budget_ends_it_with_what_it_has(text_task, tmp_path):
    (cell,) = Audit(task=text_task("bert", "", 64), client="one_step(mode=eval)", defenses=("noise(relative=0.6)",),
                    attacks=("subspace",), threats=("curious",), batch=(3,), trials=1, budget="0.001 s").cells()
    folder = CellDir(tmp_path / "cell")
    run_cell(cell, folder, lambda share: None)
    (trial,) = folder.trials()
    assert "stopped by the budget at step 1 of 60" in trial["stopped"]
    assert len(trial["scores"]["rouge1"]) == 3 and not trial["failed"]
