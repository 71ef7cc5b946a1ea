"""Tensors as small pictures that stand inside the page."""

import base64
import io

from PIL import Image
from torch import Tensor


def png(image: Tensor) -> bytes:
    """A C x H x W tensor in [0, 1], pixel for pixel; one channel is grey, other than three are averaged to grey."""
    pixels = image.detach().float().nan_to_num(0.0).clamp(0, 1).mul(255).round().byte().cpu()
    if pixels.shape[0] == 3:
        picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    else:
        picture = Image.fromarray(pixels.float().mean(0).round().byte().numpy())
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def data_uri(image: Tensor) -> str:
    """The picture as a `data:` address: nothing to fetch."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")
