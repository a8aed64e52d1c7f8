"""What is known of a family of detectors, see `detcli.model.families`."""

from collections.abc import Callable
from dataclasses import replace

from detcli.core import frozen
from detcli.model.contract import FOLLOWING, MultiLabel, Preprocessing, Resize, Size
from detcli.model.heads import GridSpec, Head
from detcli.model.inputs import ImageInput


@frozen
class Family:
    """A family of detectors."""

    name: str
    source: str  # of these facts: a repository at GitHub, and what in it; and what else is like it
    # what its networks were trained with; None where that differs
    preprocessing: Preprocessing | None = None
    # whether a head is of this family; None where its grid tells
    matches: Callable[[Head], bool] | None = None
    # several boxes are given for an object; None where the file says it
    needs_nms: bool | None = True
    nms: float = 0.45  # the IoU that its authors suppress them with
    class_agnostic: bool = (
        False  # boxes of all classes are compared for that, not only those of one
    )
    # scores become shares of all classes (softmax), and the one of this index, that of no object,
    # is dropped: 0 or -1
    no_object: int | None = None
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS
    fractions: bool = False  # boxes are fractions of the picture
    # corners of rows are y1, x1, y2, x2, where the nodes do not show their order
    swapped: bool = False
    shown: bool = False  # the nodes have to show the order of corners of rows, and their unit
    # its graphs take pictures with the channels last; None if either way
    channels_last: bool | None = None
    single: bool | None = None  # its graphs take one picture without a batch; None if either way
    clips: bool = True  # its own code ends boxes at the edges of the picture
    margin: int = 0  # pixels of the input that the longer side of a picture leaves free
    # what its layers give for each cell, where the graph does not decode it
    grid: GridSpec | None = None
    names: tuple[str, ...] = ()  # of the classes that all its models have
    # the values that are assumed, where its files do not say that they were trained on others
    variant: str = ""
    # what its first networks were trained with, on shares of 1 in place of 0 to 255: their first
    # weights are larger than FIRST_WEIGHT
    earlier: Preprocessing | None = None

    @property
    def gives_a_set(self) -> bool:
        """True if it gives a box for each object, as DETR and its successors."""
        return self.fractions and not self.needs_nms

    def is_of(self, head: Head) -> bool:
        """True if a head is of this family."""
        if head.grid is not None:
            return head.grid.spec is self.grid
        return self.matches is not None and self.matches(head)

    def takes(self, image: ImageInput) -> bool:
        """True if its graphs have inputs of this form."""
        if self.channels_last not in {None, image.channels_last}:
            return False
        return self.single in {None, image.single}

    def preprocess(self, size: Size | None, default: Size) -> Preprocessing | None:
        """What its networks were trained with; None where that differs."""
        if self.preprocessing is None:
            return None
        preprocessing = replace(self.preprocessing, longest=None)
        if self.margin:
            preprocessing = replace(preprocessing, longest=max(size or default) - self.margin)
        if size is not None and preprocessing.resize in FOLLOWING:
            # Whoever fixed the size has stretched to it.
            return replace(preprocessing, resize=Resize.STRETCH, edges=None, multiple=1)
        return preprocessing
