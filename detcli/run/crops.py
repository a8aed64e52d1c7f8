"""The parts of pictures that a detector looks at: a region, or overlapping tiles."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from detcli.config.values import Tiling
from detcli.data.detections import Detections
from detcli.data.geometry import Area, Picture
from detcli.data.tiling import merge


class TiledPictures:
    """Pictures that are cut into overlapping tiles, and whose detections are merged again.

    A network sees small objects of a large picture only in tiles, and objects that are larger than
    a tile only in the whole picture, so it detects in both.

    Attributes:
        views: What to detect in: for each picture its tiles and then the whole picture, unless the
            detections in that are known already.
    """

    def __init__(
        self,
        tiling: Tiling,
        pictures: Sequence[Picture],
        in_whole: Sequence[Detections] | None = None,
    ) -> None:
        """Cut pictures into tiles.

        Args:
            tiling: How pictures are cut into overlapping tiles.
            pictures: The pictures.
            in_whole: The detections in each whole picture, if these are known already. Of them,
                only those that are larger than the overlap of two tiles count, since anything
                smaller lies entirely within some tile.
        """
        self.views: list[Picture] = []
        self._tiling = tiling
        self._in_whole = in_whole
        self._areas_of_pictures = [tiling.areas(picture.pixels.shape[:2]) for picture in pictures]
        self._view_counts: list[int] = []  # the number of views of each picture
        for picture, areas in zip(pictures, self._areas_of_pictures, strict=True):
            views_of_picture = [crop(picture, area) for area in areas]
            if in_whole is not None:
                views_of_picture.pop()  # The last area is the whole picture.
            self.views += views_of_picture
            self._view_counts.append(len(views_of_picture))

    def merged(self, results: Sequence[Detections]) -> list[Detections]:
        """Merge the detections in the views to the detections of each picture.

        Args:
            results: The detections in each of `views`, in its pixels.
        """
        small_side = 0.0  # in pixels; smaller detections in the whole picture do not count
        if self._in_whole is not None:
            small_side = self._tiling.overlap * self._tiling.size
        merged_results = []
        first_view = 0  # of the picture, among all views
        for index, areas in enumerate(self._areas_of_pictures):
            view_count = self._view_counts[index]
            in_areas = list(results[first_view : first_view + view_count])
            first_view += view_count
            if self._in_whole is not None:
                in_areas.append(self._in_whole[index])
            merged_results.append(merge(in_areas, areas, small_side))
        return merged_results


def indices_of_crowds(
    tiling: Tiling, pictures: Sequence[Picture], detections_to_count: Sequence[Detections]
) -> list[int]:
    """Find the pictures that show a crowd, and so are to be cut into tiles.

    These are larger than one tile, and have at least `tiling.crowd` detections.

    Args:
        tiling: How pictures are cut into tiles.
        pictures: The pictures.
        detections_to_count: The detections in each of them.

    Returns:
        The indices of those pictures.
    """
    crowded_indices = []
    for index, picture in enumerate(pictures):
        is_large = max(picture.pixels.shape[:2]) > tiling.size
        if is_large and len(detections_to_count[index]) >= tiling.crowd:
            crowded_indices.append(index)
    return crowded_indices


def crop(picture: Picture, area: Area) -> Picture:
    """Cut an area out of a picture, without copying its pixels."""
    left, top, right, bottom = area
    return Picture.whole(picture.pixels[top:bottom, left:right])


def moved_from_crops(results: Sequence[Detections], areas: Sequence[Area]) -> list[Detections]:
    """Turn detections in crops of pictures into detections in pixels of the whole pictures.

    Args:
        results: The detections in each crop; boxes are cut off at its edges.
        areas: The area of each picture that was cut out.
    """
    moved_results = []
    for detections, (left, top, right, bottom) in zip(results, areas, strict=True):
        in_crop = detections.within((bottom - top, right - left))
        offset = np.array([left, top, left, top], np.float32)
        moved_results.append(replace(in_crop, xyxy=in_crop.xyxy + offset))
    return moved_results
