"""Which defense to take: never one that was not shown to hold, and always with what it costs."""

from typing import Any

import pytest

from gradleak import registry
from gradleak.audit.advice import advise, weighed
from gradleak.audit.plan import Audit
from gradleak.audit.utility import Interval, Utility
from gradleak.audit.verdict import Row, Verdict, row
from gradleak.report import plots
from gradleak.report.economics import Economics, cost_table, frontiers
from gradleak.spec import parse

DEFENSES = ("none", "noise(sigma=0.1)", "noise(sigma=1)", "sign")


def record(psnr: float, **changes: Any) -> dict[str, Any]:
    return {"trial": 0, "leaked": [psnr >= 20], "failed": None, "warnings": [], "stopped": None, "unscored": {},
            "residual": {"guess": [0.0, 0.0], "truth": [0.0, 0.0]}, "scores": {"psnr": [psnr]}, "granted": [],
            "unused": [], "distortion": 0.0, "seconds": 1.0, **changes}


LEAKS, HELD = record(30.0), record(10.0)
LOST = record(10.0, residual={"guess": [0.5, 0.5], "truth": [0.0, 0.0]})
ODD = record(10.0, warnings=["odd"])


def judged(curious: dict[str, dict], informed: dict[str, dict] | None = None) -> list[Row]:
    found = {"curious": curious, "informed": informed or curious}
    metrics = [registry.build("metric", parse("psnr"))]
    audit = Audit(defenses=tuple(curious), metrics=("psnr",), trials=1)
    return [row(c, [found[c.threat][c.defense]], True, metrics) for c in audit.cells()]


def worth(mean: float, mcc: float = 0.5, classes: int = 10) -> Utility:
    near = Interval(mean, mean - 0.02, mean + 0.02)
    return Utility(near, near, Interval(mcc, mcc - 0.1, mcc + 0.1), 10, 1.0, 1, classes)


def costs(rows: list[Row], **found: Utility) -> dict[tuple[str, str], Utility]:
    names = dict(zip(("none", "weak", "strong", "sign"), DEFENSES, strict=True))
    return {(rows[0].cell.task, names[name]): cost for name, cost in found.items()}


def advice(rows: list[Row], found: dict[tuple[str, str], Utility] | None = None):
    (one,) = advise(weighed(rows, found or {}))
    return one


@pytest.mark.parametrize("doubt", [LOST, ODD, LEAKS])
def test_what_did_not_hold_is_never_recommended(doubt: dict) -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, doubt, doubt, doubt), strict=True)))
    said = advice(rows, costs(rows, none=worth(0.9), weak=worth(0.89), strong=worth(0.8), sign=worth(0.85)))
    assert said.defense is None and said.sentence.startswith("No setting can be recommended")
    rows = judged(dict(zip(DEFENSES, (LEAKS, doubt, HELD, doubt), strict=True)))
    assert advice(rows, costs(rows, weak=worth(0.99), strong=worth(0.2), sign=worth(0.99))).defense == DEFENSES[2]


@pytest.mark.parametrize("doubt", [LOST, ODD, LEAKS])
def test_it_must_hold_against_every_attacker(doubt: dict) -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, HELD, HELD, LEAKS), strict=True)),
                  dict(zip(DEFENSES, (LEAKS, doubt, HELD, LEAKS), strict=True)))
    assert advice(rows).defense == DEFENSES[2]


@pytest.mark.parametrize(("naive", "defense"), [(LOST, "noise(sigma=0.1)"), (ODD, None), (LEAKS, None)])
def test_a_failed_search_is_no_doubt_where_one_who_knows_more_was_held_off(naive: dict, defense: str | None) -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, naive, naive, naive), strict=True)),
                  dict(zip(DEFENSES, (LEAKS, HELD, LEAKS, LOST), strict=True)))
    assert advice(rows).defense == defense


def test_the_sentence_says_the_cost_and_what_held_is_not() -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, HELD, HELD, LEAKS), strict=True)))
    found = costs(rows, none=worth(0.9), weak=worth(0.82), strong=worth(0.85))
    said = advice(rows, found)
    assert said.defense == "noise(sigma=1)"
    assert "accuracy 0.850" in said.sentence and "a loss of 5.0 points" in said.sentence
    assert "not proof" in said.sentence and "guessing" not in said.sentence
    useless = costs(rows, none=worth(0.9), strong=worth(0.1, mcc=0.05))
    assert "guessing" in advice(rows, useless).sentence
    assert "not measured" in advice(rows).sentence


def test_without_costs_the_least_change_is_the_weakest() -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, record(10.0, distortion=0.5), record(9.0, distortion=5.0), LEAKS),
                           strict=True)))
    assert advice(rows).defense == "noise(sigma=0.1)"


def test_nothing_read_without_a_defense_recommends_none() -> None:
    rows = judged(dict(zip(DEFENSES, (HELD, HELD, HELD, HELD), strict=True)))
    said = advice(rows, costs(rows, none=worth(0.9), weak=worth(0.8)))
    assert said.defense == "none" and "not proof" in said.sentence


def test_the_front_is_what_nothing_beats() -> None:
    rows = judged(dict(zip(DEFENSES, (LEAKS, record(15.0), record(9.0), record(16.0)), strict=True)))
    found = weighed(rows, costs(rows, none=worth(0.9), weak=worth(0.8), strong=worth(0.6), sign=worth(0.7)))
    assert [one.front for one in found] == [True, True, True, False]
    ((_, plot),) = frontiers(Economics(found, []))
    assert "accuracy after training" in plot and "<svg" in plot and plot.count(">4<") == 1
    assert cost_table(Economics(found, [])).row_count == 4


def test_two_classes_are_judged_by_matthews() -> None:
    assert worth(0.7, mcc=0.3, classes=2).leading.mean == 0.3 and worth(0.7).leading.mean == 0.7
    shown = plots.frontier([plots.Offer(1, (0.3, 0.2, 0.4), (10, 9, 11), True, True)], "MCC", "PSNR", None, "t")
    assert "MCC" in shown


def test_the_verdict_of_a_setting_is_its_worst() -> None:
    (one,) = weighed(judged({"sign": HELD}, {"sign": LOST}), {})
    assert one.verdict is Verdict.INCONCLUSIVE
    (one,) = weighed(judged({"sign": LOST}, {"sign": HELD}), {})
    assert one.verdict is Verdict.HELD
