"""The parts of images that detection runs on: a region, or overlapping tiles."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detcli.config.values import Tiling
from detcli.data.detections import Detections
from detcli.data.geometry import Area, Image, Size
from detcli.data.tiling import merge


class _TiledImage(NamedTuple):
    """How one image is cut into tiles."""

    areas: list[Area]  # the tiles, and last the whole image
    view_count: int  # how many of the areas detection has to run on


class TiledImages:
    """Images that are cut into overlapping tiles, and whose detections are merged again.

    A network sees small objects of a large image only in tiles, and objects that are larger than
    a tile only in the whole image, so detection runs on both.

    Attributes:
        views: The images to run detection on: for each image its tiles and then the whole image,
            unless its detections are already known.
    """

    def __init__(
        self,
        tiling: Tiling,
        images: Sequence[Image],
        whole_image_results: Sequence[Detections] | None = None,
    ) -> None:
        """Cut images into tiles.

        Args:
            tiling: How images are cut into overlapping tiles.
            images: The images.
            whole_image_results: The detections in each whole image, if these are already known.
                Only those larger than the overlap of two tiles are used, since anything smaller
                lies entirely within some tile.
        """
        self.views: list[Image] = []  # of all images, to run detection on
        self._tiling = tiling
        self._whole_image_results = whole_image_results
        self._tiled_images: list[_TiledImage] = []
        for image in images:
            areas = tiling.areas(image.pixels.shape[:2])
            areas_to_detect_in = areas
            if whole_image_results is not None:
                *tile_areas, _whole_area = areas
                areas_to_detect_in = tile_areas
            self.views += [crop(image, area) for area in areas_to_detect_in]
            self._tiled_images.append(_TiledImage(areas, len(areas_to_detect_in)))

    def merged(self, results: Sequence[Detections]) -> list[Detections]:
        """Merge the detections in the views of each image into those of the image.

        Args:
            results: The detections in each of `views`, in pixels of the view.

        Returns:
            The detections of each image, in its pixels.
        """
        # Earlier results of the whole image are used only for objects that are larger than the
        # overlap of neighbouring tiles. Any smaller object lies entirely in one of the tiles.
        smallest_side_px = 0.0
        if self._whole_image_results is not None:
            smallest_side_px = self._tiling.overlap * self._tiling.size

        merged_results = []
        first_view = 0
        for index, tiled_image in enumerate(self._tiled_images):
            end_view = first_view + tiled_image.view_count
            area_results = list(results[first_view:end_view])
            first_view = end_view
            if self._whole_image_results is not None:  # the last of the areas is the whole image
                area_results.append(self._whole_image_results[index])
            merged_results.append(merge(area_results, tiled_image.areas, smallest_side_px))
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
        results: The detections in each crop, in its pixels. Boxes are clipped to it.
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
