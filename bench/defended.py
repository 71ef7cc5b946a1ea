"""Naive and informed attackers side by side under every deterministic defense and under strong noise; lenet, batch 1.

python bench/defended.py ['soteria(prune=0.8)' ...]
"""

import sys

from common import PHOTOS, measured

from gradleak.audit.plan import Audit

DEFENSES = ("none", "clip(norm=0.1)", "prune(keep=0.1)", "prune(keep=0.1, by=layer)", "prune(keep=0.1, by=random)",
            "soteria(prune=0.8)", "sign", "quantise(bits=4)", "quantise(bits=4, stochastic=false)",
            "noise(relative=0.1)", "noise(relative=10)")

audit = Audit(
    task=f"image(model=lenet, data={PHOTOS})",
    defenses=tuple(sys.argv[1:]) or DEFENSES,
    attacks=("ig(steps=1000, restarts=1)",), trials=4, metrics=("psnr", "mse", "ssim", "label_accuracy"), budget="3 h",
)
print(f"{'defense':36} {'attacker':9} {'verdict':13} {'PSNR dB':>8} {'interval':>14} {'truth off by':>13} "
      f"{'change':>7}")
for row in measured(audit):
    psnr = row.scores["psnr"]
    print(f"{row.cell.defense:36} {row.cell.threat:9} {row.verdict:13} {psnr.mean:8.1f} "
          f"{f'[{psnr.low:.1f}, {psnr.high:.1f}]':>14} {row.residual['truth']:13.1e} {row.distortion:7.2f}")
