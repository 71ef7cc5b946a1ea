"""What every registered defense must hold, those of other packages included."""

import inspect

import pytest
import torch

from gradleak import registry
from gradleak.residual import norm, residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Batch

SAMPLES = {
    "noise": ["noise(sigma=0.01)", "noise(relative=0.5)", "noise(peak=0.2)", "noise(unit=0.01)"],
    "clip": ["clip(norm=0.1)"],
    "prune": ["prune(keep=0.1)", "prune(keep=0.1, by=layer)", "prune(keep=0.3, by=random)"],
    "quantise": ["quantise(bits=4)", "quantise(bits=4, stochastic=False)"],
    "dpsgd": ["dpsgd(clip=0.1, multiplier=0)", "dpsgd(clip=0.1, multiplier=0.5)"],
    "topk": ["topk(keep=0.1)"],
    "soteria": ["soteria(prune=0.5)"],
    "aggregate": ["aggregate(clients=2)"],
    "chain": ["chain(clip(norm=0.1), aggregate(clients=2))", "chain(clip(norm=0.1), prune(keep=0.2))",
              "chain(prune(keep=0.3), sign)",
              "chain(clip(norm=1.0), noise(sigma=0.01))"],
}


def samples() -> list[str]:
    found = []
    for name in registry.names("defense"):
        parameters = inspect.signature(registry.maker("defense", name)).parameters.values()
        needs = [p for p in parameters if p.default is p.empty]
        assert name in SAMPLES or not needs, f"defense {name} needs arguments: add a sample to this test"
        found += SAMPLES.get(name, [name])
    return found


@pytest.mark.parametrize("spec", samples())
class TestDefense:
    def test_the_same_draws_give_the_same_update(self, play, spec: str) -> None:
        one, other = play(spec, count=2), play(spec, count=2)
        for name, value in one.sent.release.update.items():
            assert torch.equal(value, other.sent.release.update[name])

    def test_the_mimic_replays_the_truth(self, play, spec: str) -> None:
        defense = registry.build("defense", parse(spec))
        if not defense.random:
            left = residual(play(spec, "informed", 2).seen, play(spec, "informed", 2).secret.batch)
            assert left.cosine < 1e-6 and left.l2 < 1e-4
            return
        gaps = []
        for trial in range(4):
            informed, naive = (play(spec, who, 2, trial=trial) for who in ("informed", "curious"))
            gaps.append(residual(informed.seen, informed.secret.batch).cosine
                        - residual(naive.seen, naive.secret.batch).cosine)
        assert sum(gaps) / len(gaps) <= 1e-3

    def test_the_mimic_can_be_descended(self, play, spec: str) -> None:
        seen = play(spec, "informed", 2).seen
        x = (Rng(1) / "x").uniform((2, *seen.shape), next(iter(seen.params.values()))).detach().requires_grad_()
        update = seen.replay(Batch(x, torch.tensor([0, 1])))
        total = sum(((update[k] - seen.update[k]) ** 2).sum() for k in update)
        (slope,) = torch.autograd.grad(total, x)
        assert bool(slope.isfinite().all()) and float(slope.abs().max()) > 0

    def test_zeros_that_are_sent_have_no_sign(self, play, spec: str) -> None:
        """It would be that of what was left out."""
        for client in ("one_step", "rounds(one_step, times=2)"):
            release = play(spec, count=2, client=client).sent.release
            for update in (release.update, *(sent for _, sent in release.later)):
                assert not any(bool((value.signbit() & (value == 0)).any()) for value in update.values())

    def test_it_prints_as_what_builds_it(self, play, spec: str) -> None:
        made = registry.build("defense", parse(spec))
        assert registry.build("defense", parse(repr(made))) == made


def test_defenses_do_what_they_say(play) -> None:
    assert norm(play("clip(norm=0.01)").sent.release.update) == pytest.approx(0.01, rel=1e-4)
    total = sum(v.numel() for v in play("none").sent.release.update.values())
    kept = sum(int((v != 0).sum()) for v in play("prune(keep=0.1)").sent.release.update.values())
    assert kept == pytest.approx(0.1 * total, rel=0.01)
    for value in play("prune(keep=0.1, by=layer)").sent.release.update.values():
        assert int((value != 0).sum()) <= max(1, round(0.1 * value.numel()))
    assert {float(v) for u in play("sign").sent.release.update.values() for v in u.unique()} <= {-1.0, 0.0, 1.0}
    assert play("noise(relative=3)").sent.distortion == pytest.approx(3, rel=0.2)
    assert all(len(u.unique()) <= 7 for u in play("quantise(bits=3)").sent.release.update.values())
    assert play("none").sent.distortion == 0


def test_random_rounding_is_unbiased(play) -> None:
    value = torch.linspace(-1, 1, 41)
    send = registry.build("defense", parse("quantise(bits=2)")).protect(lambda params, batch, rng: {"w": value})
    batch = Batch(value, value)
    draws = torch.stack([send({}, batch, Rng(0) / i)["w"] for i in range(2000)])
    assert {float(v) for v in draws.unique()} == {-1.0, 0.0, 1.0}
    assert float((draws.mean(0) - value).abs().max()) < 0.06
