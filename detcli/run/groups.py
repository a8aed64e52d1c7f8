"""Images of a batch in groups whose network inputs have the same size.

Images of different proportions may have inputs of different sizes, and a network runs on inputs of
one size at a time.
"""

from collections import defaultdict
from collections.abc import Sequence

from detcli.backend.protocol import Pending
from detcli.core import frozen
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Size


@frozen
class StartedGroup:
    """Images of a batch that the device works on together."""

    indices: list[int]  # of the images, in the batch
    # for each selection that runs on the device, a function that waits for the images' detections
    pending: list[Pending]


def groups_by_input_size(letterboxes: Sequence[Letterbox]) -> list[list[int]]:
    """Group the images of a batch by the size of their network inputs.

    Args:
        letterboxes: Where each image lies on its input.

    Returns:
        The indices of the images in each group.
    """
    indices_by_size: defaultdict[Size, list[int]] = defaultdict(list)
    for index, letterbox in enumerate(letterboxes):
        indices_by_size[letterbox.canvas].append(index)
    return list(indices_by_size.values())


def wait_for_groups(
    groups: Sequence[StartedGroup], image_count: int, selection_count: int
) -> list[list[Detections]]:
    """Wait for the detections of all groups of a batch, and put them in the order of its images.

    Args:
        groups: The groups; together they have all images of the batch.
        image_count: The number of images in the batch.
        selection_count: The number of selections that run on the device.

    Returns:
        A list for each selection, with the detections of each image of the batch.
    """
    # For each selection, the detections by the index of the image in the batch.
    results_by_selection: list[dict[int, Detections]] = [{} for _ in range(selection_count)]
    for group in groups:
        for selection_index, wait in enumerate(group.pending):
            detections_of_group = wait()
            image_results = zip(group.indices, detections_of_group, strict=True)
            results_by_selection[selection_index].update(image_results)

    ordered_results = []
    for results_by_image in results_by_selection:
        ordered_results.append([results_by_image[index] for index in range(image_count)])
    return ordered_results
