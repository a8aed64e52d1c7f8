"""A static page of a run: opens from a disk, without a server and without network."""
