"""What makes the page answer: choices to filter by, steps to go through, and the one script the page vouches for."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from gradleak.audit.verdict import Row
from gradleak.report.measures import leading, measure

MOST_STEPS, MOST_LINES = 24, 4

LABELS = {"attack": "Attack", "defense": "Defense", "threat": "Threat", "batch": "Batch", "verdict": "Verdict",
          "task": "Task"}


def script() -> str:
    return (files("gradleak.report") / "page.js").read_text("utf-8")


def policy(text: str) -> str:
    """Nothing is fetched, and no script runs but this one: whatever a name in a run holds stays text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def facets(row: Row) -> dict[str, str]:
    """What a row can be filtered by."""
    cell = row.cell
    return {"attack": cell.attack, "defense": cell.defense, "threat": cell.threat, "batch": str(cell.batch),
            "verdict": str(row.verdict), "task": cell.task}


def choices(rows: Sequence[Row]) -> dict[str, tuple[str, list[str]]]:
    """By name, the label and values of each thing that differs between rows."""
    found = {name: list(dict.fromkeys(facets(row)[name] for row in rows)) for name in LABELS}
    return {name: (LABELS[name], values) for name, values in found.items() if len(values) > 1}


def steps(row: Row, events: Sequence[dict[str, Any]]) -> str | None:
    """A few steps of the first trial as JSON: step, residual, leading score, and the text where there is any."""
    own = [event for event in events if event["trial"] == events[0]["trial"]]
    if len(own) < 2:
        return None
    last, lead = len(own) - 1, leading(row).name
    picked = sorted({round(last * i / (MOST_STEPS - 1)) for i in range(MOST_STEPS)})
    return json.dumps([_step(own[i], lead) for i in picked], separators=(",", ":"))


def _step(event: dict[str, Any], lead: str) -> dict[str, Any]:
    score = {"score": measure(lead).said(event[lead])} if lead in event else {}
    text = {"text": event["text"][:MOST_LINES]} if event.get("text") else {}
    return {"step": event["step"], "residual": f"{event['residual'][0]:.2g}", **score, **text}
