"""YOLOv10 in PyTorch, written from the paper: Wang et al., arXiv 2405.14458.

The family differs in width and depth only. Strides are 8, 16 and 32 pixels; names of sizes in
the shape comments: B pictures, C channels, N anchors (cells of all three scales together),
K classes.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from codes.blocks import CIB, PSA, SPPF, BottleneckPair, C2f, Conv, SCDown
from codes.head import Head

STRIDES = (8, 16, 32)


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
        return cls((16, 16, 32, 64, 128), (1, 2, 2, 1), 1, classes, 32, 32)


class Backbone(nn.Module):
    """Stem and four stages; returns the maps at strides 8, 16 and 32."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        c2, c4, c8, c16, c32 = plan.channels
        r4, r8, r16, r32 = plan.repeats
        self.to8 = nn.Sequential(
            Conv(3, c2, 3, 2),
            Conv(c2, c4, 3, 2),
            C2f(c4, c4, [BottleneckPair(c4 // 2) for _ in range(r4)]),
            Conv(c4, c8, 3, 2),
            C2f(c8, c8, [BottleneckPair(c8 // 2) for _ in range(r8)]),
        )
        self.to16 = nn.Sequential(
            SCDown(c8, c16), C2f(c16, c16, [BottleneckPair(c16 // 2) for _ in range(r16)])
        )
        self.to32 = nn.Sequential(
            SCDown(c16, c32),
            C2f(c32, c32, [BottleneckPair(c32 // 2) for _ in range(r32)]),
            SPPF(c32),
            PSA(c32),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [B, 3, H, W]
        p8 = self.to8(pictures)  # [B, C8, H/8, W/8]
        p16 = self.to16(p8)  # [B, C16, H/16, W/16]
        return p8, p16, self.to32(p16)  # [B, C32, H/32, W/32]


class Neck(nn.Module):
    """A path aggregation network: features go up to stride 8 and down again to stride 32."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        _, _, c8, c16, c32 = plan.channels

        def mix(channels_in: int, channels: int) -> C2f:
            inner: list[nn.Module] = [
                BottleneckPair(channels // 2, shortcut=False) for _ in range(plan.neck_repeats)
            ]
            return C2f(channels_in, channels, inner)

        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
        self.up16 = mix(c32 + c16, c16)
        self.up8 = mix(c16 + c8, c8)
        self.halve8 = Conv(c8, c8, 3, 2)
        self.down16 = mix(c8 + c16, c16)
        self.halve16 = SCDown(c16, c16)
        self.down32 = C2f(c16 + c32, c32, [CIB(c32 // 2) for _ in range(plan.neck_repeats)])

    def forward(self, maps: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        b8, b16, b32 = maps
        u16 = self.up16(torch.cat([self.enlarge(b32), b16], 1))
        n8 = self.up8(torch.cat([self.enlarge(u16), b8], 1))
        n16 = self.down16(torch.cat([self.halve8(n8), u16], 1))
        return n8, n16, self.down32(torch.cat([self.halve16(n16), b32], 1))


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

    def features(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps at strides 8, 16 and 32 of pictures `[B, 3, H, W]`, RGB from 0 to 1."""
        maps: tuple[Tensor, Tensor, Tensor] = self.neck(self.backbone(pictures))
        return maps

    def forward(self, pictures: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Raw output of the one-to-many and of the one-to-one head.

        Each is side distributions `[B, 4 * 16, N]` and class logits `[B, K, N]`.
        """
        maps = self.features(pictures)
        stopped = tuple(part.detach() for part in maps)
        return self.many(maps), self.one(stopped)
