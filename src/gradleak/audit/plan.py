"""What an audit will do, checked before anything runs."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from gradleak import registry
from gradleak.audit.suite import Suite
from gradleak.calculus import one_thread
from gradleak.errors import GradleakError, UsageError, did_you_mean
from gradleak.rng import Rng
from gradleak.spec import parse, sweep
from gradleak.threats import PROTOCOL, threat
from gradleak.types import Attack, Defense, Know, Metric
from gradleak.world.clients import Participation
from gradleak.world.private import refused
from gradleak.world.round import GRANTS
from gradleak.world.task import Task, World

LARGEST_FILE = 1_000_000
MOST_CELLS = 20_000
LARGEST_BATCH = 2**20
OF_PUBLIC = frozenset({Know.PUBLIC_DATA, Know.TOKEN_FREQUENCIES})
"""Knowledge that comes of the examples a task calls public."""


@dataclass(frozen=True)
class Cell:
    """One row of the table: one attack on one defended client under one threat, over several trials."""

    task: str
    client: str
    assume: str
    batch: int
    threat: str
    defense: str
    attack: str
    trials: int
    seed: int
    budget: float
    metrics: tuple[str, ...]

    @property
    def key(self) -> str:
        return digest(asdict(self))

    def suite(self) -> Suite | None:
        """The list of attacks behind the name, if it is one."""
        call = parse(self.attack)
        return registry.build("suite", call) if call.name in registry.names("suite") or "-" in call.name else None

    @property
    def evaluations(self) -> int:
        """About how many replays one trial costs at most."""
        return self.opponent().evaluations

    def attacker(self) -> Attack:
        """The attack; a suite's members have cells of their own."""
        return registry.build("attack", parse(self.attack))  # type: ignore[no-any-return]

    def opponent(self) -> Attack | Suite:
        """Whatever attacks here."""
        return self.suite() or self.attacker()

    def defender(self) -> Defense:
        return registry.build("defense", parse(self.defense))  # type: ignore[no-any-return]

    @property
    def examples(self) -> int:
        """How many are behind an update: a batch a client that sends."""
        return self.batch * int(getattr(self.defender(), "clients", 1))

    def participation(self) -> Participation:
        return registry.build("client", parse(self.client))  # type: ignore[no-any-return]

    def assumed(self) -> Participation:
        return registry.build("client", parse(self.assume))  # type: ignore[no-any-return]

    def walk(self) -> None:
        """Refuse a client that would leave some of its examples out."""
        self.participation().order(self.batch, Rng(self.seed))

    def one_by_one(self) -> None:
        """Refuse a client whose examples cannot be taken one by one under a defense that does."""
        defense = self.defender()
        if not getattr(defense, "per_example", False):
            return
        if self.participation().protocol.get("steps", 1) != 1:
            raise UsageError(f"{self.defense}: each example's gradient is clipped in one step, but {self.client} takes "
                             "several; use one_step")
        getattr(defense, "privacy", None)  # asks the accountant, which may be missing

    def grants(self) -> None:
        """Refuse a threat that is granted what this task does not have."""
        there = GRANTS | _task(self.task).grants
        for know in sorted(threat(self.threat).knows - there, key=lambda k: k.value):
            more = "" if know not in OF_PUBLIC else "; name the examples in the task, as in public=5000 of its own data"
            raise UsageError(f"threat {self.threat!r}: {know.value} cannot be granted here{more}; "
                             f"there is {', '.join(sorted(k.value for k in there))}")

    def scorers(self) -> list[Metric]:
        return [registry.build("metric", parse(name)) for name in self.metrics]

    def world(self) -> World:
        return _world(self.task, self.seed)


@lru_cache(maxsize=2)
def _world(task: str, seed: int) -> World:
    try:
        with one_thread():
            return _task(task).open(Rng(seed) / "task")
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "allocate memory" not in str(problem):
            raise
        raise UsageError(f"{task} needs more memory than there is; choose a smaller model or less data") from None


def _task(task: str) -> Task:
    return registry.build("task", parse(task))  # type: ignore[no-any-return]


def _own_metrics(task: str) -> tuple[str, ...]:
    try:
        return _task(task).metrics
    except UsageError:
        return ()  # said with every other problem, when the plan is checked


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Audit:
    """The whole question. Lists are crossed: every batch size, threat, defense and attack meets every other.

    Without metrics each task is measured by its own.
    """

    name: str = "audit"
    task: str = "image(model=lenet, data=photos(size=32))"
    client: str = "one_step"
    assume: str | None = None
    batch: tuple[int, ...] = (1,)
    threats: tuple[str, ...] = ("curious", "informed")
    defenses: tuple[str, ...] = ("none",)
    attacks: tuple[str, ...] = ("dlg",)
    metrics: tuple[str, ...] = ()
    trials: int = 8
    seed: int = 0
    budget: str = "10 min"
    leak_at: dict[str, float] = field(default_factory=dict)
    utility: str | None = None
    """How to train the task under each defense, to see what it costs: `federated(rounds=300)`; none: do not."""

    def cells(self) -> list[Cell]:
        """Every row, in the order of the file. Threats a defense makes no difference to are kept: rows are compared."""
        found = list(islice(self._cells(), MOST_CELLS + 1))
        if len(found) > MOST_CELLS:
            raise UsageError(f"more than {MOST_CELLS} cells: every batch, defense, attack, threat and sweep is crossed "
                             "with every other; split the audit up")
        return found

    def _cells(self) -> Iterator[Cell]:
        client, seconds = repr(parse(self.client)), duration(self.budget)
        assume = repr(parse(self.assume)) if self.assume else client
        for task in sweep(parse(self.task)):
            metrics = tuple(self._with_threshold(name) for name in self.metrics or _own_metrics(repr(task)))
            for size in self.batch:
                for defense in _each(self.defenses):
                    for attack in _each(self.attacks):
                        for who in self.threats:
                            yield Cell(repr(task), client, assume, size, repr(threat(who)), defense, attack,
                                       self.trials, self.seed, seconds, metrics)

    def _with_threshold(self, name: str) -> str:
        return f"{name}(leak_at={self.leak_at[name]})" if name in self.leak_at else name

    @property
    def digest(self) -> str:
        return digest(asdict(self))


def _each(specs: tuple[str, ...]) -> Iterator[str]:
    for text in specs:
        for call in sweep(parse(text)):
            yield repr(call)


def duration(text: str) -> float:
    """Seconds in `90 s`, `2 min` or `1 h`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|m|h)\s*", text)
    if not found or float(found[1]) <= 0:
        raise UsageError(f"budget = {text!r}: write a time such as '90 s', '2 min' or '1 h'")
    return float(found[1]) * {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}[found[2]]


def read(path: Path) -> Audit:
    """The audit a TOML file describes, every problem in it named at once."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; `gradleak run` without a file writes an audit.toml to start from")
    if path.stat().st_size > LARGEST_FILE:
        raise UsageError(f"{path}: larger than {LARGEST_FILE} bytes: not an audit file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UsageError(f"{path}: not TOML ({problem}); strings need quotes, lists need brackets") from None
    return from_table(table, str(path))


def from_table(table: dict[str, Any], where: str = "audit") -> Audit:
    defaults = asdict(Audit())
    given: dict[str, Any] = {}
    problems = [f"unknown key {key!r}: {did_you_mean(key, list(defaults))}" for key in table if key not in defaults]
    for key, value in table.items():
        if key not in defaults:
            continue
        try:
            given[key] = _typed(key, value)
        except UsageError as problem:
            problems.append(str(problem))
    if problems:
        raise UsageError(f"{where}: " + "; also: ".join(problems))
    return checked(Audit(**given), where)


def checked(audit: Audit, where: str = "audit") -> Audit:
    """The audit itself, if nothing stands in its way; otherwise one error that names every problem."""
    problems = list(_problems(audit))
    if problems:
        raise UsageError(f"{where}: " + "; also: ".join(problems))
    return audit


def _typed(key: str, value: Any) -> Any:
    if key in ("threats", "defenses", "attacks", "metrics"):
        items = value if isinstance(value, list) else [value]
        if not (items or key == "metrics") or not all(isinstance(item, str) for item in items):
            raise UsageError(f"{key} must be a list of quoted names, as in {key} = [\"...\"]")
        return tuple(items)
    if key == "batch":
        items = value if isinstance(value, list) else [value]
        if not items or not all(isinstance(item, int) and 0 < item <= LARGEST_BATCH for item in items):
            raise UsageError(f"batch = {str(value)[:80]} must be whole numbers from 1 to {LARGEST_BATCH}, as in "
                             "batch = [1, 4]")
        return tuple(items)
    if key in ("trials", "seed"):
        if not isinstance(value, int) or isinstance(value, bool) or value < (key == "trials"):
            raise UsageError(f"{key} = {value!r} must be a whole number{' from 1' if key == 'trials' else ''}")
        return value
    if key == "leak_at":
        if not isinstance(value, dict) or not all(
                isinstance(v, int | float) and abs(v) < 1e300 for v in value.values()):
            raise UsageError("leak_at must give a number a metric, as in leak_at = {psnr = 18}")
        return {name: float(number) for name, number in value.items()}
    if not isinstance(value, str):
        raise UsageError(f"{key} = {value!r} must be a quoted string")
    if key == "name" and not re.fullmatch(r"[\w.-]{1,60}", value):
        raise UsageError(f"name = {value!r}: letters, digits, dots and dashes only, it names a folder")
    return value


def _problems(audit: Audit) -> Iterator[str]:
    """Everything that would stop a cell, found without running one."""
    try:
        cells = audit.cells()
    except GradleakError as problem:
        yield str(problem)
        return
    measured = {parse(name).name for cell in cells for name in cell.metrics}
    for name in audit.leak_at:
        if name not in measured:
            yield f"leak_at: {name!r} is not among the metrics: {did_you_mean(name, sorted(measured))}"
    seen: set[str] = set()
    if audit.utility is not None:
        try:
            registry.build("training", parse(audit.utility))
        except GradleakError as problem:
            seen.add(f"utility: {problem}")
            yield f"utility: {problem}"
    for cell in cells:
        for check in (cell.defender, cell.opponent, cell.walk, cell.assumed, cell.one_by_one, cell.scorers,
                      cell.grants):
            try:
                check()
            except GradleakError as problem:
                if str(problem) not in seen:
                    seen.add(str(problem))
                    yield str(problem)
    if seen:
        return
    for task in sorted({cell.task for cell in cells}):
        size = max(cell.examples for cell in cells if cell.task == task)
        try:
            world = _world(task, audit.seed)
        except GradleakError as problem:
            yield str(problem)
            continue
        if size > len(world.pool):
            yield (f"batch = {size} is larger than the data ({len(world.pool)} examples to draw from); "
                   "use a smaller batch or more data")
            continue
        try:
            world.secret(world.pool[:size].tolist())
        except GradleakError as problem:
            yield str(problem)
        if any(getattr(cell.defender(), "per_example", False) for cell in cells) and (said := refused(world.learner)):
            yield said
        yield from _untold({cell.threat: cell for cell in cells if cell.task == task}.values(), world)


def _untold(cells: Iterable[Cell], world: World) -> Iterator[str]:
    """Threats that are told what was dropped, of clients that drop nothing or at every step anew."""
    for cell in cells:
        part = cell.participation()
        told = Know.DROPOUT in threat(cell.threat).knows
        if told and not part.sites(world.learner, world.secret(world.pool[:1].tolist()).batch):
            yield (f"threat {cell.threat!r}: {cell.client} drops nothing that could be told; remove dropout from it, "
                   "or use one_step(mode=train) with a model that drops")


def unmet(cell: Cell) -> list[str]:
    """What the attack needs to know and the threat does not grant. A suite does without what does not apply."""
    if cell.suite():
        return []
    lacking = cell.attacker().needs - threat(cell.threat).knows - PROTOCOL
    return sorted(know.value for know in lacking)
