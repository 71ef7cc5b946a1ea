"""What came back, sample by sample, ready to be looked at."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from gradleak.audit.plan import Cell
from gradleak.audit.store import CellDir
from gradleak.audit.verdict import Row
from gradleak.errors import UsageError
from gradleak.report import pictures
from gradleak.report.sentences import Said, compared, unmarked
from gradleak.types import Vocabulary

Look = str | Said
"""A picture as a `data:` address, or a sentence."""

Eye = Callable[["Found", int], Look]
"""How a reading is looked at, given the number of the truth it is compared with."""


class Found(NamedTuple):
    """A recovered image or row of tokens, and which of these the attack has proven, if it says so."""

    reading: Tensor
    certain: Tensor | None


@dataclass(frozen=True)
class Sample:
    """One private example: what came back, and how close that is."""

    name: str
    recovered: Look
    weakest: Look | None
    truth: Look | None
    scores: dict[str, float]
    leaked: bool
    earlier: tuple[tuple[str, Look], ...] = ()
    """What had come back by some step, where the attack says so."""

    @property
    def size(self) -> int:
        """About how many bytes of a page it takes."""
        looks = [look for look in (self.recovered, self.weakest, self.truth) if look is not None]
        return sum(len(look) if isinstance(look, str) else 60 * len(look.words) for look in looks)


def samples(row: Row, weakest: Row | None, folders: dict[str, CellDir], show_truth: bool) -> Iterator[Sample]:
    """Every sample of a row, beside what came back of it in the weakest row; the truth only where it is asked for."""
    same = {t["trial"]: t["ids"] for t in row.trials}  # an aggregate is of other examples than one client's update
    beside = {t["trial"]: t for t in weakest.trials if t["ids"] == same.get(t["trial"])} if weakest else {}
    for record in row.trials:
        trial = record["trial"]
        readings = _readings(record, folders[row.cell.key])
        if not readings:
            continue
        others = _readings(beside[trial], folders[weakest.cell.key]) if weakest and trial in beside else []
        eye, truths = _seen(row.cell, record["ids"], readings[0].reading.is_floating_point(), show_truth)
        earlier = _earlier(record, folders[row.cell.key])
        for i, reading in enumerate(readings):
            yield Sample(
                f"trial {trial + 1}, sample {i + 1}", eye(reading, i),
                eye(others[i], i) if i < len(others) else None,
                truths[i] if i < len(truths) else None,
                {name: values[i] for name, values in record["scores"].items() if i < len(values)},
                bool(record["leaked"][i]), tuple((step, eye(found[i], i)) for step, found in earlier))


def _earlier(record: dict[str, Any], folder: CellDir) -> list[tuple[str, list[Found]]]:
    """Images that had come back by some steps, each in the place of the truth its last form was matched to."""
    kept = {int(name.removeprefix("earlier.")): value for name, value in folder.guess(record["trial"]).items()
            if name.startswith("earlier.")}
    return [(str(step), [Found(kept[step][i], None) for i in record["match"]]) for step in sorted(kept)]


def _readings(record: dict[str, Any], folder: CellDir) -> list[Found]:
    """Recovered images or rows of tokens, each in the place of the truth it was matched to."""
    kept = folder.guess(record["trial"])
    reading, certain = kept.get("reading"), kept.get("certain")
    if reading is None or not reading.numel() or any(i >= len(reading) for i in record["match"]):
        return []
    if reading.ndim != (4 if reading.is_floating_point() else 2):
        return []
    if certain is None or certain.shape != reading.shape:
        return [Found(reading[i], None) for i in record["match"]]
    return [Found(reading[i], certain[i]) for i in record["match"]]


def _seen(cell: Cell, ids: Sequence[int], images: bool, show_truth: bool) -> tuple[Eye, list[Look]]:
    """The eye for one trial, and its truths if they may be shown. Images need no world unless they may."""
    if images:
        truths = _truths(cell, ids) if show_truth else ()
        return lambda found, i: pictures.data_uri(found.reading), [pictures.data_uri(image) for image in truths]
    world = cell.world()
    vocabulary = world.vocabulary
    if vocabulary is None:
        raise UsageError(f"{cell.task}: its guesses are tokens, but it has no vocabulary; write the report with the "
                         "version of the task that was run")
    own = [vocabulary.sentence(truth) for truth in world.secret(ids).readings]
    return (lambda found, i: compared(vocabulary.sentence(found.reading), own[i], vocabulary,
                                      _proven(found, vocabulary)),
            [unmarked(truth, vocabulary) for truth in own] if show_truth else [])


def _truths(cell: Cell, ids: Sequence[int]) -> Tensor:
    try:
        return cell.world().secret(ids).readings
    except IndexError:
        raise UsageError(f"{cell.task}: its data have no examples {list(ids)[:5]}: they changed since the run, or the "
                         "run was edited; write the report without --show-truth") from None


def _proven(found: Found, vocabulary: Vocabulary) -> list[bool] | None:
    """Per token inside the frame."""
    if found.certain is None:
        return None
    inner = vocabulary.inner(found.reading)
    return [bool(certain) for certain, inside in zip(found.certain.tolist(), inner, strict=True) if inside]
