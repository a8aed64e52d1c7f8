"""What is in a folder."""


def names_in(folder):
    """The names of its files and folders, sorted."""
    return sorted(path.name for path in folder.iterdir())


def names_matching(folder, pattern):
    """The names of the files and folders that a pattern finds in it, sorted."""
    return sorted(path.name for path in folder.glob(pattern))


def files_in(folder):
    """The paths of all files in a folder and in the folders in it, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def contents_of(folder):
    """The content of every file in a folder and its subfolders, by path."""
    return {path: path.read_bytes() for path in files_in(folder)}


def visible_names(folder):
    """The names of its files and folders that do not begin with a dot, sorted."""
    return names_matching(folder, "[!.]*")
