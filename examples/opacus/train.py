"""A client that trains with Opacus: what its defense is, as captured, and what can still be read.

    pip install opacus
    python examples/opacus/train.py
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradleak import capture
from gradleak.capture.format import read


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def recovered(noise: float, x: torch.Tensor, y: torch.Tensor, into: Path) -> tuple[str, float]:
    """The defense as noted, and how far the best reading is from the picture."""
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimiser, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimiser, data_loader=DataLoader(TensorDataset(x, y), batch_size=1),
        noise_multiplier=noise, max_grad_norm=1.0, poisson_sampling=False)
    with capture.update(model, into, spec="mlp(width=64)", shape=(3, 16, 16), classes=10, count=1, optimiser=optimiser):
        for images, labels in loader:
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
    found = capture.attack(into, "linear")
    return str(read(into).note.defense), float((found.images[0] - x[0]).abs().mean())


def main() -> None:
    torch.manual_seed(1)
    x, y = torch.rand(1, 3, 16, 16), torch.tensor([3])
    with tempfile.TemporaryDirectory() as folder:
        plain = recovered(0.0, x, y, Path(folder) / "plain")
        noisy = recovered(1.0, x, y, Path(folder) / "noisy")
    for defense, error in (plain, noisy):
        sys.stdout.write(f"{defense}: mean error of a pixel {error:.3f}\n")
    sys.exit(0 if plain[1] < 0.01 < noisy[1] else 1)


if __name__ == "__main__":
    main()
