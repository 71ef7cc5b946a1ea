"""DLG on lenet, 32 px, labels unknown: batch 1 over 16 images, batch 4 over 4 batches, photographs and CIFAR-10.

python bench/dlg.py        (CIFAR-10 too if data/cifar10.npz is there)
"""

from common import PHOTOS, cifar, line, measured

from gradleak.audit.plan import Audit

METRICS = ("psnr", "mse", "ssim", "label_accuracy")
for data in filter(None, (PHOTOS, cifar())):
    task = f"image(model=lenet, data={data})"
    for batch, attack, trials in ((1, "dlg", 16), (4, "dlg(steps=6000, restarts=1, tv=30)", 4)):
        audit = Audit(task=task, batch=(batch,), threats=("curious",), attacks=(attack,), trials=trials,
                      metrics=METRICS, budget="3 h")
        for row in measured(audit):
            print(line(row), flush=True)
