"""Ten lines: which of three settings gives the image away?"""

from rich.console import Console

from gradleak import Audit, rows, run

audit = Audit(
    task="image(model=lenet, data=photos(size=32))",
    defenses=("none", "noise(relative=1)", "prune(keep=0.05)"),
    attacks=("ig(steps=300)",),
    trials=2,
)
for row in rows(run(audit)):
    Console().print(row.cell.defense, row.cell.threat, row.verdict, f"{row.scores['psnr'].mean:.1f} dB")
