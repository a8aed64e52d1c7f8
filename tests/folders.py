"""What is in a folder."""


def names_in(folder):
    """The names of its files and folders, sorted."""
    return sorted(path.name for path in folder.iterdir())
