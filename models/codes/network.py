"""YOLOv10 in PyTorch, written from the paper: Wang et al., arXiv 2405.14458.

The family's members differ in width and depth only. Strides are 8, 16 and 32 pixels. In shape
comments, B is images, C channels, N anchors (cells of all three scales together), K classes.

The head is decoupled: for each side of its object, every anchor predicts a distribution over 16
bins of one stride each (distribution focal loss, arXiv 2006.04388), and a score for each class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

STRIDES = (8, 16, 32)
BINS = 16  # the longest distance is 15 strides: 120, 240 and 480 pixels
PRIOR = 0.01  # the score of an untrained head, as in RetinaNet, which keeps the start stable


class Conv(nn.Module):
    """A convolution, its batch normalisation, and SiLU unless `active` is False."""

    def __init__(
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
        convolved = self._in_float32(x) if self.training and self.conv.groups > 1 else self.conv(x)
        out: Tensor = self.activation(self.norm(convolved))
        return out

    def _in_float32(self, x: Tensor) -> Tensor:
        """Convolve in float32 also under autocast.

        On CPUs the gradients of a strided depthwise convolution take tens of times as long in
        bfloat16.
        """
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.conv(x.float()).to(x.dtype)
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


class Head(nn.Module):
    """Box and class branch for each scale, without weights shared between scales."""

    def __init__(
        self, widths: Sequence[int], classes: int, box_channels: int, class_channels: int
    ) -> None:
        """Make both branches of each scale.

        Args:
            widths: Channels of the map of each scale, the finest first.
            classes: K.
            box_channels: Channels inside a box branch.
            class_channels: Channels inside a class branch.
        """
        super().__init__()
        self.box = nn.ModuleList(
            nn.Sequential(
                Conv(width, box_channels, 3),
                Conv(box_channels, box_channels, 3),
                nn.Conv2d(box_channels, 4 * BINS, 1),
            )
            for width in widths
        )
        self.score = nn.ModuleList(
            nn.Sequential(
                depthwise(width, 3),
                Conv(width, class_channels),
                depthwise(class_channels, 3),
                Conv(class_channels, class_channels),
                nn.Conv2d(class_channels, classes, 1),
            )
            for width in widths
        )
        # Almost all anchors are on no object: an untrained head scores `PRIOR` on all of them.
        for branch in self.score:
            last = branch[-1]  # type: ignore[index] # a ModuleList does not type its members
            nn.init.constant_(last.bias, math.log(PRIOR / (1 - PRIOR)))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Side distributions `[B, 4 * 16, N]` (logits) and class logits `[B, K, N]`."""
        sides, logits = self.branches(maps)
        flat = [torch.cat([part.flatten(2) for part in parts], 2) for parts in (sides, logits)]
        return flat[0], flat[1]

    def branches(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The same by scale: `[B, 4 * 16, H, W]` and `[B, K, H, W]` of each."""
        sides = [branch(part) for branch, part in zip(self.box, maps, strict=True)]
        logits = [branch(part) for branch, part in zip(self.score, maps, strict=True)]
        return sides, logits


def anchors(shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Anchors of all scales, all rows of the finest scale first.

    Args:
        shapes: Height and width of each scale's map.
        strides: Pixels between two of its cells.

    Returns:
        Centres `[N, 2]` as x, y in pixels, and the stride of each, `[N]`, both float32.
    """
    centres, sizes = [], []
    for (height, width), stride in zip(shapes, strides, strict=True):
        y = torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)
        x = torch.arange(width, dtype=torch.float32)[None].expand(height, width)
        cells = torch.stack([x.reshape(-1), y.reshape(-1)], 1)  # [H * W, 2]
        centres.append((cells + 0.5) * stride)
        sizes.append(torch.full((height * width,), float(stride)))
    return torch.cat(centres), torch.cat(sizes)


def square(side: int, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Anchors of a square image of this side in pixels."""
    return anchors([(side // stride, side // stride) for stride in strides], strides)


def decode_boxes(sides: Tensor, centres: Tensor, sizes: Tensor) -> Tensor:
    """Boxes `[B, 4, N]`, xyxy in pixels, from distributions `[B, 4 * 16, N]` (logits)."""
    batch, _, count = sides.shape
    shares = sides.reshape(batch, 4, BINS, count).softmax(2)
    bins = torch.arange(BINS, dtype=shares.dtype, device=shares.device)
    distance = (shares * bins[:, None]).sum(2) * sizes  # [B, 4, N]: left, top, right, bottom
    near, far = distance.chunk(2, 1)
    middle = centres.T  # [2, N]
    return torch.cat([middle - near, middle + far], 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a network.

    Attributes:
        channels: Of the feature maps at strides 2, 4, 8, 16 and 32.
        repeats: Inner blocks of the C2f at strides 4, 8, 16 and 32 of the backbone.
        neck_repeats: Inner blocks of each C2f of the neck.
        classes: K.
        box_channels: Inside the box branch of the head.
        class_channels: Inside the class branch of the head.
    """

    channels: tuple[int, int, int, int, int]
    repeats: tuple[int, int, int, int]
    neck_repeats: int
    classes: int
    box_channels: int
    class_channels: int

    @classmethod
    def nano(cls, classes: int = 80) -> Self:
        """YOLOv10-N, the paper's smallest."""
        return cls((16, 32, 64, 128, 256), (1, 2, 2, 1), 1, classes, 64, max(64, min(classes, 100)))

    @classmethod
    def narrow(cls, classes: int) -> Self:
        """The bundled model's: thin where maps are large, and no wider than 128 channels."""
        return cls((16, 16, 32, 64, 128), (1, 3, 2, 2), 1, classes, 32, 32)


def _bottleneck_stage(channels_in: int, channels: int, repeats: int, *, shortcut: bool) -> C2f:
    """A C2f of this many bottleneck pairs, which work on half of its channels."""
    blocks: list[nn.Module] = []
    for _ in range(repeats):
        blocks.append(BottleneckPair(channels // 2, shortcut=shortcut))
    return C2f(channels_in, channels, blocks)


class Backbone(nn.Module):
    """Stem and four stages; returns the maps at strides 8, 16 and 32.

    A number in a name is the stride of what it belongs to: `c8` channels at stride 8.
    """

    def __init__(self, plan: Plan) -> None:
        """Make the stem, of two convolutions, and the stages, as wide and deep as the plan says."""
        super().__init__()
        c2, c4, c8, c16, c32 = plan.channels  # at strides 2 to 32
        repeats4, repeats8, repeats16, repeats32 = plan.repeats  # of blocks, at strides 4 to 32
        self.to8 = nn.Sequential(
            Conv(3, c2, kernel=3, stride=2),
            Conv(c2, c4, kernel=3, stride=2),
            _bottleneck_stage(c4, c4, repeats4, shortcut=True),
            Conv(c4, c8, kernel=3, stride=2),
            _bottleneck_stage(c8, c8, repeats8, shortcut=True),
        )
        self.to16 = nn.Sequential(
            SCDown(c8, c16),
            _bottleneck_stage(c16, c16, repeats16, shortcut=True),
        )
        self.to32 = nn.Sequential(
            SCDown(c16, c32),
            _bottleneck_stage(c32, c32, repeats32, shortcut=True),
            SPPF(c32),
            PSA(c32),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [B, 3, H, W]
        map8 = self.to8(images)  # [B, C8, H/8, W/8]
        map16 = self.to16(map8)  # [B, C16, H/16, W/16]
        map32 = self.to32(map16)  # [B, C32, H/32, W/32]
        return map8, map16, map32


class Neck(nn.Module):
    """A path aggregation network: features go up to stride 8 and down again to stride 32.

    On the way up, a map is enlarged and joined with the backbone's of the finer stride; on the way
    down, it is halved and joined with the map of the coarser stride. `up` and `down` modules mix
    what was joined, and a number in a name is the stride: `down16` works on maps of stride 16.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        _, _, c8, c16, c32 = plan.channels
        repeats = plan.neck_repeats
        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
        self.up16 = _bottleneck_stage(c32 + c16, c16, repeats, shortcut=False)
        self.up8 = _bottleneck_stage(c16 + c8, c8, repeats, shortcut=False)
        self.halve8 = Conv(c8, c8, kernel=3, stride=2)
        self.down16 = _bottleneck_stage(c8 + c16, c16, repeats, shortcut=False)
        self.halve16 = SCDown(c16, c16)
        self.down32 = C2f(c16 + c32, c32, [CIB(c32 // 2) for _ in range(repeats)])

    def forward(self, maps: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        map8, map16, map32 = maps
        up16 = self.up16(torch.cat([self.enlarge(map32), map16], 1))
        out8 = self.up8(torch.cat([self.enlarge(up16), map8], 1))
        out16 = self.down16(torch.cat([self.halve8(out8), up16], 1))
        out32 = self.down32(torch.cat([self.halve16(out16), map32], 1))
        return out8, out16, out32


class Network(nn.Module):
    """The detector with both heads.

    The one-to-many head exists for training: many anchors learn each object, which drives the
    features. The one-to-one head is trained on the same features, with its gradients stopped
    there, to answer with one anchor for each object; it is what is exported, without NMS.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.backbone = Backbone(plan)
        self.neck = Neck(plan)
        widths = plan.channels[2:]
        self.many = Head(widths, plan.classes, plan.box_channels, plan.class_channels)
        self.one = Head(widths, plan.classes, plan.box_channels, plan.class_channels)

    def features(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps at strides 8, 16 and 32 of images `[B, 3, H, W]`, RGB from 0 to 1."""
        maps: tuple[Tensor, Tensor, Tensor] = self.neck(self.backbone(images))
        return maps

    def forward(self, images: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Raw output of the one-to-many and of the one-to-one head.

        Each is side distributions `[B, 4 * 16, N]` and class logits `[B, K, N]`.
        """
        maps = self.features(images)
        stopped = tuple(part.detach() for part in maps)
        return self.many(maps), self.one(stopped)
