"""Where items and records come from."""


def sources_of(items):
    return [item.origin.source for item in items]


def frames_of(items):
    return [item.origin.frame for item in items]


def times_of(items):
    """The time of each item in its video, in seconds."""
    return [item.origin.time_s for item in items]
