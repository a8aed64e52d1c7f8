"""What is drawn over images: zones and lines."""


def captions_of(shapes):
    """The captions of zones or lines that an image shows."""
    return [caption for caption, _ in shapes]
