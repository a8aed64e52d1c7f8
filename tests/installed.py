"""What pip leaves of a package besides its modules."""


def install_metadata(folder, name, version, module):
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    (place / "top_level.txt").write_text(f"{module}\n")
