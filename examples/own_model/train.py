"""Your own PyTorch model and training: capture one round, ask the doctor, attack it.

    python examples/own_model/train.py
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from gradleak import capture
from gradleak.capture.diagnose import diagnose
from gradleak.capture.files import Said


def build(shape=(3, 16, 16), classes=10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.GELU(), nn.Linear(64, classes))


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    model, x, y = build(), torch.rand(1, 3, 16, 16), torch.tensor([7])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "round-1"
        with capture.update(model, into, spec="python('train:build')", shape=(3, 16, 16), classes=10):
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
        table, code = diagnose(into, Said())
        Console().print(table)
        found = capture.attack(into, "linear")
        error = float((found.images[0] - x[0]).abs().max())
    sys.stdout.write(f"{found.said}; largest error of any pixel {error:.1e}\n")
    sys.exit(0 if code == 0 and found.explained and error < 0.01 else 1)


if __name__ == "__main__":
    main()
