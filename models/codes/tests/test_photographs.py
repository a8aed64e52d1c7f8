import hashlib
import shutil
import subprocess

import pytest
from codes.photographs import fetch

WANTED = ("usr/share/backgrounds/mate/a.jpg", "usr/share/tuxpaint/stamps/animals/b.png")


@pytest.fixture
def package(tmp_path):
    """A package as dpkg-deb builds it, with two wanted files and one unwanted."""
    builder = shutil.which("dpkg-deb")
    if builder is None:
        pytest.skip("dpkg-deb is not installed")
    tree = tmp_path / "tree"
    for name in WANTED + ("usr/share/doc/copyright",):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a\n"
    )
    path = tmp_path / "a.deb"
    subprocess.run([builder, "-Zxz", "--build", tree, path], check=True, capture_output=True)
    return path


def test_the_images_of_a_package_are_unpacked_below_their_paths(package, tmp_path):
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    fetch(tmp_path / "out", f"file://{tmp_path}/", {"a.deb": digest})
    contents = {}
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            contents[str(path.relative_to(tmp_path / "out"))] = path.read_text()
    assert contents == {name: name for name in WANTED}


def test_a_package_that_is_another_one_is_refused(package, tmp_path):
    with pytest.raises(ValueError, match=f"SHA-256 is .*, not {'0' * 64}"):
        fetch(tmp_path / "out", f"file://{package.parent}/", {"a.deb": "0" * 64})
    assert not (tmp_path / "out").exists()
