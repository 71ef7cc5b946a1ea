"""Attacks on captured updates. There is no truth here: an answer proves itself by explaining the update."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from gradleak import registry
from gradleak.audit import checks
from gradleak.audit.run import FAILURES
from gradleak.calculus import one_thread
from gradleak.capture.files import Opened, Said, observe, open_update
from gradleak.errors import Unsuited, UsageError
from gradleak.residual import Residual, norm, residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Attack, Guess, Know, Observation, Vocabulary

EXPLAINED = 1e-3
"""A residual below this means the candidates account for the update."""


@dataclass(frozen=True)
class Outcome:
    """What came back of a captured update, and how well it explains it."""

    guess: Guess
    left: Residual
    vocabulary: Vocabulary | None
    warnings: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """Sentences read; none of images."""
        return [self.vocabulary.sentence(row).text for row in self.guess.reading] if self.vocabulary else []

    @property
    def images(self) -> list[Tensor]:
        return [] if self.vocabulary else list(self.guess.reading)

    @property
    def certain(self) -> float:
        """Share of the tokens read that the attack has proven."""
        if self.guess.certain is None or self.vocabulary is None:
            return 0.0
        inner = [flag for row in self.guess.reading for flag in self.vocabulary.inner(row)]
        proven = [bool(c) for c, i in zip(self.guess.certain.flatten().tolist(), inner, strict=True) if i]
        return sum(proven) / len(proven) if proven else 0.0

    @property
    def explained(self) -> bool:
        """Whether this is, as far as anyone without the truth can tell, what the client trained on."""
        return self.left.cosine < EXPLAINED or self.certain == 1.0 or self.noise_alone

    @property
    def noise_alone(self) -> bool:
        """Whether the attack has found that what the answer leaves of the update is noise, and nothing else."""
        return self.guess.notes.get("noise_alone") == 1.0

    @property
    def said(self) -> str:
        what = f"{len(self.guess.reading)} {'sentence' if self.vocabulary else 'image'}(s)"
        sure = f"; {self.certain:.0%} of the tokens are certain" if self.certain else ""
        failed = "do NOT explain the update: the search failed, or a setting is wrong (gradleak doctor UPDATE)"
        but = " but for noise" if self.noise_alone else ""
        meaning = f"explain the update{but}" if self.explained else failed
        return f"{what}; they {meaning} (cosine distance {self.left.cosine:.1e}, relative l2 {self.left.l2:.1e}{sure})"


def attack(update: str | Path, attack: str, said: Said = Said(), err: Console | None = None) -> Outcome:  # noqa: B008
    """Attack one captured update: a folder that `gradleak.capture` wrote, or a safetensors file of a gradient."""
    attacker: Attack = registry.build("attack", parse(attack))
    lacking = attacker.needs - {Know.COUNT, Know.LOCAL_STEPS, Know.DEFENSE}
    if lacking:
        needs = ", ".join(sorted(k.value for k in lacking))
        raise UsageError(f"{attack}: needs {needs}, which a captured update does not bring; choose one that infers it")
    opened = open_update(Path(update), said)
    try:
        with one_thread():
            return _attacked(attacker, opened, said.seed, err or Console(stderr=True, quiet=True))
    except FAILURES as problem:
        raise Unsuited(f"{attack} failed: {type(problem).__name__}: {problem}") from problem


def _attacked(attacker: Attack, opened: Opened, seed: int, err: Console) -> Outcome:
    seen = observe(opened)
    typical = checks.typical_length(seen.replay, seen, opened.read.count or 1, Rng(seed))
    warnings = [*checks.before(seen.update, norm(seen.update), typical),
                *(f"{f.what}: {f.evidence}; {f.remedy}" for f in opened.read.findings)]
    for warning in warnings:
        err.print(f"warning: {warning}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    guess = _last(attacker, seen, Rng(seed) / "attack", err)
    return Outcome(guess, residual(seen, guess.batch), seen.vocabulary, tuple(warnings))


def _last(attacker: Attack, seen: Observation, rng: Rng, err: Console) -> Guess:
    last: Guess | None = None
    with Progress(console=err) as bar:
        task = bar.add_task("attacking", total=1.0)
        for last in attacker.guesses(seen, rng):
            bar.update(task, completed=last.step / last.steps)
    if last is None:
        raise UsageError("the attack gave no answer")
    return last


def attack_file(spec: str, update: Path, said: Said, to: Path, out: Console, err: Console) -> None:
    """Attack, write what was recovered, say how well it explains the update."""
    found = attack(update, spec, said, err)
    save(found, to)
    for text in found.texts:
        out.print(text, markup=False, highlight=False, soft_wrap=True)
    out.print(f"{to}: {found.said}", highlight=False, markup=False, soft_wrap=True)


def save(found: Outcome, to: Path) -> None:
    """Images as pictures, sentences as lines of one file."""
    to.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(found.images):
        _save(image, to / f"{number}.png")
    if found.texts:
        (to / "sentences.txt").write_text("".join(_line(text) for text in found.texts), encoding="utf-8")


def _line(text: str) -> str:
    return " ".join(text.split()) + "\n"


def _save(image: Tensor, path: Path) -> None:
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(path)
