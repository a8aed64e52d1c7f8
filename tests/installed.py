"""What pip leaves of a package besides its modules."""


def install_metadata(folder, name, version, module):
    dist_info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    (dist_info / "top_level.txt").write_text(f"{module}\n")
