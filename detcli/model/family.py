"""What is known about a family of detectors, see `detcli.model.families`."""

from collections.abc import Callable
from dataclasses import replace

from detcli.core import frozen
from detcli.model.contract import (
    FOLLOWING,
    MultiLabel,
    Preprocessing,
    Resize,
    Size,
    Suppression,
)
from detcli.model.heads import GridSpec, Head
from detcli.model.inputs import ImageInput


@frozen
class Family:
    """A family of detectors: how to recognise its files, and what they do not say."""

    name: str
    # Where these facts come from, a repository at GitHub and what in it; and what else is like it.
    source: str
    # What its networks were trained with; None where that differs.
    preprocessing: Preprocessing | None = None
    # Whether a head belongs to this family; None where `grid` shows it.
    matches: Callable[[Head], bool] | None = None
    # Whether it outputs several boxes for an object; None where the file says it.
    needs_nms: bool | None = True
    nms: float = 0.45  # the IoU above which its authors suppress a box
    # Whether they compare boxes of all classes for that, not only those of the same class.
    class_agnostic: bool = False
    suppression: Suppression = Suppression.DROP
    # Scores become shares of all classes (softmax). The one with this index, 0 or -1, is that of no
    # object, which is dropped.
    no_object: int | None = None
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS
    fractions: bool = False  # boxes are fractions of the image
    # Corners of detections are y1, x1, y2, x2, where the nodes do not show their order.
    y_first: bool = False
    # A graph belongs to this family only if its nodes show the order of the corners, and their
    # unit.
    must_show_corners: bool = False
    # Its graphs take images with the channels last; None if that differs.
    channels_last: bool | None = None
    single: bool | None = None  # its graphs take one image without a batch; None if that differs
    clips: bool = True  # its own code clips boxes to the image
    margin: int = 0  # pixels of the input that the longer side of an image leaves free
    # What its layers output for each cell, where the graph does not decode it.
    grid: GridSpec | None = None
    names: tuple[str, ...] = ()  # of the classes that all its models have
    # A description of the pixel values that are assumed where a file does not show which its
    # network was trained on.
    assumed_values: str = ""
    # What its first networks were trained with, on small values in place of 0 to 255. Their first
    # weights are larger than MIN_WEIGHT_FOR_SMALL_VALUES.
    earlier_preprocessing: Preprocessing | None = None

    @property
    def gives_one_box_per_object(self) -> bool:
        """True if nothing has to be suppressed, as with DETR and its successors."""
        return self.fractions and not self.needs_nms

    def has_head(self, head: Head) -> bool:
        """True if a head belongs to this family."""
        if head.grid is not None:
            return head.grid.spec is self.grid
        return self.matches is not None and self.matches(head)

    def takes_input(self, image: ImageInput) -> bool:
        """True if its graphs have inputs of this form."""
        if self.channels_last not in {None, image.channels_last}:
            return False
        return self.single in {None, image.single}

    def preprocessing_for(self, size: Size | None, default: Size) -> Preprocessing | None:
        """Return how images are prepared for a network of this family.

        Args:
            size: Height and width of the network's input; None if it takes any.
            default: Height and width to run it at, if it takes any.

        Returns:
            The preprocessing that its networks were trained with, for an input of this size; None
            where that differs from network to network.
        """
        if self.preprocessing is None:
            return None
        longest_side = None  # of the image in the input
        if self.margin:
            longest_side = max(size or default) - self.margin
        preprocessing = replace(self.preprocessing, longest=longest_side)
        follows_image = preprocessing.resize in FOLLOWING  # the input has the size of each image
        if follows_image and size is not None:
            # Whoever exported such a network with a fixed size stretches images to that.
            return replace(preprocessing, resize=Resize.STRETCH, edges=None, multiple=1)
        return preprocessing
