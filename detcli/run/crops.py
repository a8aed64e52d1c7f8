"""The parts of images that a detector looks at: a region, or overlapping tiles."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detcli.config.values import Tiling
from detcli.data.detections import Detections
from detcli.data.geometry import Area, Image, Size
from detcli.data.tiling import merge


class TiledImages:
    """Images that are cut into overlapping tiles, and whose detections are merged again.

    A network sees small objects of a large image only in tiles, and objects that are larger than
    a tile only in the whole image, so it detects in both.

    Attributes:
        views: What to detect in: for each image its tiles and then the whole image, unless the
            detections in that are known already.
    """

    def __init__(
        self,
        tiling: Tiling,
        images: Sequence[Image],
        in_whole: Sequence[Detections] | None = None,
    ) -> None:
        """Cut images into tiles.

        Args:
            tiling: How images are cut into overlapping tiles.
            images: The images.
            in_whole: The detections in each whole image, if these are known already. Of them,
                only those that are larger than the overlap of two tiles count, since anything
                smaller lies entirely within some tile.
        """
        self.views: list[Image] = []  # of all images, to be detected in
        self._tiling = tiling
        self._in_whole = in_whole
        self._areas_of_images: list[list[Area]] = []  # for each image its tiles, then the whole
        self._view_counts: list[int] = []  # the number of views of each image
        for image in images:
            areas = tiling.areas(image.pixels.shape[:2])
            areas_to_detect_in = areas
            if in_whole is not None:
                areas_to_detect_in = areas[:-1]  # without the whole image
            self.views += [crop(image, area) for area in areas_to_detect_in]
            self._view_counts.append(len(areas_to_detect_in))
            self._areas_of_images.append(areas)

    def merged(self, results: Sequence[Detections]) -> list[Detections]:
        """Merge the detections in the views of each image to those of the image.

        Args:
            results: The detections in each of `views`, in pixels of the view.

        Returns:
            The detections of each image, in its pixels.
        """
        # Smaller detections in the whole image do not count: each lies entirely in some tile.
        smallest_side_px = 0.0
        if self._in_whole is not None:
            smallest_side_px = self._tiling.overlap * self._tiling.size

        merged_results = []
        first_view = 0  # that of the image, among those of all images
        for index, areas in enumerate(self._areas_of_images):
            next_first_view = first_view + self._view_counts[index]
            in_areas = list(results[first_view:next_first_view])
            if self._in_whole is not None:
                in_areas.append(self._in_whole[index])  # the last of the areas is the whole
            merged_results.append(merge(in_areas, areas, smallest_side_px))
            first_view = next_first_view
        return merged_results


def indices_of_crowds(
    tiling: Tiling, images: Sequence[Image], detections_to_count: Sequence[Detections]
) -> list[int]:
    """Find the images that show a crowd, and so are to be cut into tiles.

    These are larger than one tile, and have at least `tiling.crowd` detections.

    Args:
        tiling: How images are cut into tiles.
        images: The images.
        detections_to_count: The detections in each of them.

    Returns:
        The indices of those images.
    """
    crowded_indices = []
    for index, image in enumerate(images):
        is_large = max(image.pixels.shape[:2]) > tiling.size
        if is_large and len(detections_to_count[index]) >= tiling.crowd:
            crowded_indices.append(index)
    return crowded_indices


def crop(image: Image, area: Area) -> Image:
    """Cut an area out of an image, without copying its pixels."""
    left, top, right, bottom = area
    return Image.whole(image.pixels[top:bottom, left:right])


def moved_from_crops(
    results: Sequence[Detections], areas: Sequence[Area], sizes: Sequence[Size]
) -> list[Detections]:
    """Turn detections in crops of images into detections in pixels of the whole images.

    Args:
        results: The detections in each crop, in its pixels. Boxes are cut off at its edges.
        areas: The area of each image that was cut out: its left, top, right and bottom edge.
        sizes: Height and width of each whole image.
    """
    moved_results = []
    for detections, area, image_size in zip(results, areas, sizes, strict=True):
        left, top, right, bottom = area
        crop_size = (bottom - top, right - left)
        in_crop = detections.within(crop_size)
        boxes_in_image = in_crop.xyxy + np.array([left, top, left, top], np.float32)
        moved_results.append(replace(in_crop, xyxy=boxes_in_image, image_size=image_size))
    return moved_results
