"""Updates and weights in safetensors files: data from strangers, checked before use, never executed."""

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gradleak import registry
from gradleak.audit import checks
from gradleak.errors import UsageError
from gradleak.residual import norm, residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import Threat
from gradleak.types import Attack, Guess, Know, Observation, Params, Release, Update
from gradleak.world.image import check_output
from gradleak.world.learner import Learner

EXPLAINED = 1e-3
"""A residual below this means the candidates account for the update."""


def load(path: Path, like: Params, what: str, also: Params | None = None) -> Update:
    """Tensors by parameter name, refused unless names, shapes and values fit the model."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; save the {what} with safetensors.torch.save_file")
    try:
        found = load_file(path)
    except (SafetensorError, ValueError, OSError) as problem:
        raise UsageError(f"{path}: not a safetensors file ({problem}); save with safetensors.torch.save_file") from None
    also = also or {}
    missing, extra = sorted(set(like) - set(found)), sorted(set(found) - set(like) - set(also))
    if missing or extra:
        raise UsageError(f"{path}: parameter names do not fit the model (missing: {', '.join(missing[:3]) or 'none'}; "
                         f"unknown: {', '.join(extra[:3]) or 'none'}); check --model, or rename them")
    for name, value in found.items():
        wanted = like[name] if name in like else also[name]
        if value.shape != wanted.shape:
            raise UsageError(f"{path}: {name} has shape {tuple(value.shape)}, not {tuple(wanted.shape)}; "
                             "check --model, --shape and --classes")
        if (name in like and not value.is_floating_point()) or not bool(value.isfinite().all()):
            raise UsageError(f"{path}: {name} holds NaN, infinite or non-float values; nothing can be matched to it")
    return {name: value.to(like[name] if name in like else also[name]) for name, value in found.items()}


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) != 3 or not all(0 < side <= 4096 for side in shape):
        raise UsageError(f"--shape {text!r}: channels, height and width, as in 3,32,32")
    return shape


def observe(
    update: Path, model: str, params: Path | None, shape: str, classes: int, count: int, client: str, defense: str,
    seed: int,
) -> Observation:
    """An observation made of files: the defense is what the caller says it was."""
    size, described = _shape(shape), parse(model)
    if described.name in set(registry.names("language")) - set(registry.names("model")):
        raise UsageError(f"--model {model}: updates of models of text cannot be read from files yet; audit it with "
                         f"task = \"text(model={model})\"")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((Rng(seed) / "task" / "model").number)
        module = registry.build("model", described).build(size, classes)
    check_output(module, model, size, classes)
    if params:
        trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        others = {k: v for k, v in module.state_dict().items() if k not in trained}
        module.load_state_dict(load(params, trained, "weights", others), strict=False)
    learner = Learner(module, size, classes)
    part = registry.build("client", parse(client))
    facts = {Know.COUNT: count, Know.LOCAL_STEPS: dict(part.protocol), Know.DEFENSE: defense}
    release = Release(learner.params, load(update, learner.params, "update"), size, classes, facts)
    threat = Threat("informed", frozenset({Know.DEFENSE}))
    return threat.observe(release, part.of(learner), registry.build("defense", parse(defense)))


def attack_file(
    attack: str, update: Path, model: str, params: Path | None, shape: str, classes: int, count: int, client: str,
    defense: str, seed: int, to: Path, out: Console, err: Console,
) -> None:
    """Attack a captured update, write what was recovered, say how well it explains the update."""
    attacker: Attack = registry.build("attack", parse(attack))
    lacking = attacker.needs - {Know.COUNT, Know.LOCAL_STEPS, Know.DEFENSE}
    if lacking:
        needs = ", ".join(sorted(k.value for k in lacking))
        raise UsageError(f"{attack}: needs {needs}, which a captured update does not bring; choose one that infers it")
    seen = observe(update, model, params, shape, classes, count, client, defense, seed)
    typical = checks.typical_length(seen.replay, seen, count, Rng(seed))
    for warning in checks.before(seen.update, norm(seen.update), typical):
        err.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    guess = _attacked(attacker, seen, Rng(seed) / "attack", err)
    to.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(guess.reading):
        _save(image, to / f"{number}.png")
    left = residual(seen, guess.batch)
    failed = "do NOT explain the update: the search failed, or a setting is wrong"
    meaning = "explain the update" if left.cosine < EXPLAINED else failed
    out.print(f"{len(guess.reading)} image(s) in {to}; they {meaning} (cosine distance {left.cosine:.1e}, "
              f"relative l2 {left.l2:.1e})", highlight=False, soft_wrap=True)


def _attacked(attacker: Attack, seen: Observation, rng: Rng, err: Console) -> Guess:
    last: Guess | None = None
    with Progress(console=err) as bar:
        task = bar.add_task("attacking", total=1.0)
        for last in attacker.guesses(seen, rng):
            bar.update(task, completed=last.step / last.steps)
    if last is None:
        raise UsageError("the attack gave no answer")
    return last


def _save(image: Tensor, path: Path) -> None:
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(path)
