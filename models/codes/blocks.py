"""The blocks that YOLOv10 is made of; every one keeps or halves height and width."""

import torch
from torch import Tensor, nn


class Conv(nn.Module):
    """A convolution, its batch normalisation, and SiLU unless `active` is False."""

    def __init__(  # noqa: PLR0913 - a convolution has these six numbers
        self,
        channels_in: int,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        *,
        active: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.03)
        self.activation = nn.SiLU() if active else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.norm(self.conv(x)))
        return out


def depthwise(channels: int, kernel: int, stride: int = 1, *, active: bool = True) -> Conv:
    """A convolution of each channel by itself."""
    return Conv(channels, channels, kernel, stride, channels, active=active)


class BottleneckPair(nn.Module):
    """Two 3x3 convolutions, with a shortcut past both."""

    def __init__(self, channels: int, *, shortcut: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, channels, 3), Conv(channels, channels, 3))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.shortcut else out


class LargeKernel(nn.Module):
    """A 7x7 depthwise convolution, trained beside a 3x3 one that is folded into it later.

    The small branch makes the large kernel trainable (paper, section 3.3).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.large = depthwise(channels, 7, active=False)
        self.small: Conv | None = depthwise(channels, 3, active=False)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.large(x)
        if self.small is not None:
            out += self.small(x)
        activated: Tensor = self.activation(out)
        return activated


class CIB(nn.Module):
    """The compact inverted block: depthwise for space, pointwise for channels, doubled inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            depthwise(channels, 3),
            Conv(channels, 2 * channels),
            LargeKernel(2 * channels),
            Conv(2 * channels, channels),
            depthwise(channels, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out


class C2f(nn.Module):
    """Splits the channels in two, runs blocks on one half, and joins every result on the way."""

    def __init__(self, channels_in: int, channels: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.enter = Conv(channels_in, channels)
        self.blocks = nn.ModuleList(blocks)
        self.leave = Conv((2 + len(blocks)) * (channels // 2), channels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C_in, H, W]
        parts = list(self.enter(x).chunk(2, 1))  # two of [B, C/2, H, W]
        for block in self.blocks:
            parts.append(block(parts[-1]))
        out: Tensor = self.leave(torch.cat(parts, 1))  # [B, C, H, W]
        return out


class SCDown(nn.Module):
    """Spatial-channel decoupled downsampling: pointwise widening, then a strided depthwise."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.widen = Conv(channels_in, channels)
        self.halve = depthwise(channels, 3, 2, active=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, C_in, H, W]
        out: Tensor = self.halve(self.widen(x))  # [B, C, H/2, W/2]
        return out


class SPPF(nn.Module):
    """Spatial pyramid pooling: the same maximum filter once, twice and three times over."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.leave = Conv(4 * (channels // 2), channels)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.enter(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        out: Tensor = self.leave(torch.cat(levels, 1))
        return out


class Attention(nn.Module):
    """Multi-head self-attention over all cells; keys are half as long as values.

    A depthwise 3x3 convolution of the values takes the place of a position embedding.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = max(channels // 64, 1)
        self.value_size = channels // self.heads
        self.key_size = self.value_size // 2
        width = channels + 2 * self.heads * self.key_size
        self.to_qkv = Conv(channels, width, active=False)
        self.position = depthwise(channels, 3, active=False)
        self.project = Conv(channels, channels, active=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        batch, channels, height, width = x.shape
        size = [self.key_size, self.key_size, self.value_size]
        qkv = self.to_qkv(x).reshape(batch, self.heads, sum(size), height * width)
        query, key, value = qkv.split(size, 2)  # [B, heads, size, HW]
        weights = (query.transpose(2, 3) @ key * self.key_size**-0.5).softmax(3)  # [B, h, HW, HW]
        mixed = (value @ weights.transpose(2, 3)).reshape(batch, channels, height, width)
        place = self.position(value.reshape(batch, channels, height, width))
        out: Tensor = self.project(mixed + place)
        return out


class PSA(nn.Module):
    """Partial self-attention: attention and a feed-forward net on one half of the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.enter = Conv(channels, channels)
        self.attention = Attention(half)
        self.feed_forward = nn.Sequential(Conv(half, 2 * half), Conv(2 * half, half, active=False))
        self.leave = Conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        kept, half = self.enter(x).chunk(2, 1)
        half = half + self.attention(half)
        half = half + self.feed_forward(half)
        out: Tensor = self.leave(torch.cat([kept, half], 1))
        return out
