"""What is generated is as the program has it, and what is linked is there."""

import re
import subprocess
import sys

import cv2
import pytest
from documentation.shells import ROOT


@pytest.fixture(scope="module")
def contents():
    """What docs/generate.py would write, by path; it runs `detcli` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")  # it sets this, too
        patch.syspath_prepend(ROOT / "docs")
        import generate

        return dict(generate.contents())


def test_what_is_generated_is_as_the_program_has_it(contents):
    for path, text in contents.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run make docs"


def test_the_reference_and_the_families_are_generated(contents):
    assert "Usage: detcli predict" in contents[ROOT / "docs/cli.md"]
    assert "| CenterFace | any, whatever the file says |" in contents[ROOT / "docs/models.md"]


def test_each_schema_is_generated(contents):
    schemas = {path for path in contents if path.suffix == ".json"}
    assert schemas == set((ROOT / "detcli/commands").glob("*/schema.json"))


def test_every_option_is_explained():
    """Click prints an option without help as a line that ends after its type."""
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    options = re.findall(r"^  (?:-\w, )?--(?!no-FLAG)\S+.*(?:\n {4,}.*)*", text, re.MULTILINE)
    assert len(options) > 15
    for option in options:
        assert re.search(r" {2,}[A-Z][^\n]+", option.strip()), option


def test_links_lead_somewhere():
    for page in [ROOT / "README.md"] + list(ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_extras_are_installed_in_one_way():
    """Double quotes work in cmd.exe, too; the name leaves an editable installation as it is."""
    paths = [ROOT / "README.md"] + list(ROOT.glob("docs/*.md")) + list(ROOT.glob("detcli/**/*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    requirements = re.findall(r"pip (?:detcli )?install (['\".]\S*|\S*\[\S+)", text)
    assert len(requirements) > 20
    for name in requirements:
        assert re.match(r'"(detcli\[[^]]+]|[\w-]+>=[\d.,<]+)"|\.(\W|$)', name), name


def test_every_promise_names_tests_that_exist():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = page.partition("| --- |")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) > 20
    for row in rows:
        tests = re.findall(r"`(tests/[^`:]+\.py)(?:::([^`]+))?`", row)
        assert tests, row
        for path, name in tests:
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


@pytest.mark.slow
def test_the_demonstration_image_is_what_its_script_draws(tmp_path):
    script = ROOT / "docs/images/draw_street.py"
    subprocess.run([sys.executable, script, tmp_path / "street.png"], check=True)
    drawn = cv2.imread(tmp_path / "street.png").astype(int)
    shipped = cv2.imread(ROOT / "detcli/pictures/street.jpg").astype(int)
    assert abs(drawn - shipped).mean() < 3  # what JPEG loses
