"""What a run directory must look like to be believed: whoever edits one gets a sentence, not a number."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from gradleak.audit.plan import Audit
from gradleak.errors import UsageError

HUGE, MANY = 1e300, 1e15
"""No figure is larger, and no count. (Noise on an update that is nearly zero changes it by very large factors.)"""

WORDS = ("granted", "unused", "uses", "warnings", "cautions")
NUMBERS = ("ids", "match")
TABLES = ("scores", "blind")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > HUGE


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MANY


def _list(value: object, kind: Any) -> bool:
    return isinstance(value, list) and all(map(kind, value))


def _table(value: object, kind: Any) -> bool:
    return isinstance(value, dict) and all(map(kind, value.values()))


def _text(value: object) -> bool:
    return isinstance(value, str)


def _amiss(record: Mapping[str, Any]) -> str | None:
    """The first key that cannot be right."""
    for key in WORDS:
        if not _list(record.get(key, []), _text):
            return key
    for key in NUMBERS:
        if not _list(record[key], _whole):
            return key
    for key in TABLES:
        if not _table(record[key], lambda values: _list(values, _number) and len(values) == len(record["leaked"])):
            return key
    fine = {
        "trial": _whole(record["trial"]), "seconds": _number(record["seconds"]),
        "leaked": _list(record["leaked"], lambda v: isinstance(v, bool)),
        "match": len(record["match"]) == len(record["leaked"]) == len(record["ids"]),
        "unscored": _table(record["unscored"], _text), "notes": _table(record["notes"], _number),
        "residual": _residual(record), "members": _list(record.get("members", []), _member),
        **{key: record.get(key) is None or _number(record[key]) for key in ("distortion", "strength", "epsilon")},
        **{key: record[key] is None or _text(record[key]) for key in ("stopped", "failed")},
    }
    return next((key for key, right in fine.items() if not right), None)


def _member(part: object) -> bool:
    """What one attack of a suite did."""
    return isinstance(part, dict) and _text(part["attack"]) and _table(part["scores"], _number) and all(
        part[key] is None or _text(part[key]) for key in ("failed", "stopped")) and all(
        isinstance(part[key], bool) or _number(part[key]) for key in ("leaked", "spared", "seconds"))


def _residual(record: Mapping[str, Any]) -> bool:
    found = record["residual"]
    pairs = _table(found, lambda pair: _list(pair, _number) and len(pair) == 2)
    return pairs and (not record["scores"] or {"guess", "truth"} <= set(found))


def believed(table: object, where: Path) -> list[dict[str, Any]]:
    """The trials in scores.json."""
    trials = table.get("trials") if isinstance(table, dict) else None
    if not isinstance(trials, list):
        raise UsageError(f"{where}: no list of trials; run the audit again in another --out")
    for place, record in enumerate(trials):
        try:
            amiss = _amiss(record)
        except (KeyError, TypeError, AttributeError) as problem:
            amiss = str(problem)
        if amiss is None and record["trial"] != place:
            amiss = "trial"
        if amiss is not None:
            raise UsageError(f"{where}: trial {place}: {str(amiss)[:40]!r} is missing or makes no sense: the file was "
                             "edited or is of another version; run the audit again in another --out")
    return cast(list[dict[str, Any]], trials)


def told(event: object) -> bool:
    """Whether a line of events.jsonl says how far an attack was."""
    if not isinstance(event, dict):
        return False
    residual = event.get("residual")
    return (_whole(event.get("trial")) and _whole(event.get("step")) and _list(residual, _number)
            and len(cast(list[float], residual)) == 2 and _list(event.get("text", []), _text)
            and all(_number(v) or k in ("residual", "text") for k, v in event.items()))


def audited(table: object, where: Path) -> Audit:
    """The audit in plan.json; its names may be anything, its types may not."""
    defaults = Audit()
    if not isinstance(table, dict) or not set(table) <= {f.name for f in fields(Audit)}:
        raise UsageError(f"{where}: not the plan of an audit of this version; run it again in another --out")
    found: dict[str, Any] = {}
    for key, value in table.items():
        wanted = getattr(defaults, key)
        kind = {"batch": _whole, "leak_at": _number}.get(key, _text)
        if isinstance(wanted, tuple):
            right, value = _list(value, kind), tuple(value) if isinstance(value, list) else value
        elif isinstance(wanted, dict):
            right = _table(value, kind)
        elif isinstance(wanted, int):
            right = _number(value) and isinstance(value, int)
        else:
            right = _text(value) or (wanted is None and value is None)
        if not right:
            raise UsageError(f"{where}: {key} makes no sense: the file was edited; run the audit again elsewhere")
        found[key] = value
    return Audit(**found)
