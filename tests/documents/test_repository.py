"""Test that the files around the package agree: guides, templates, workflows and the changelog.

They name paths, commands, versions and extras. These must exist, and be the same everywhere.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from support.helpers import PACKAGE, ROOT

from zonebloom import __version__

yaml = pytest.importorskip("yaml")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GITHUB = ROOT / ".github"
# An archive of the sources may lack the folders that begin with a dot.
pytestmark = pytest.mark.skipif(not GITHUB.exists(), reason="not in the repository")

GUIDES = [
    *(ROOT / name for name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md")),
    ROOT / "SECURITY.md",
    GITHUB / "pull_request_template.md",
]
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CHECKS = ("pytest", "ruff", "pyright")
SITE = PROJECT["urls"]["Documentation"]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def steps_of(workflow: Path) -> list[dict]:
    return [
        step for job in yaml.safe_load(read(workflow))["jobs"].values() for step in job["steps"]
    ]


def commands_of(workflow: Path) -> list[str]:
    return [line for step in steps_of(workflow) for line in step.get("run", "").splitlines()]


def is_check(line: str) -> bool:
    words = [word for word in line.split() if "=" not in word]
    return bool(words) and words[0] in CHECKS


def words_of(command: str) -> list[str]:
    """Return the words of a command without variables, quiet flags, and flags about its output."""
    words = [word for word in shlex.split(command) if not re.match(r"\w+=", word)]
    return [word for word in words if word != "-q" and not word.startswith("--durations")]


def checks_in(lines: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words_of(line.strip())) for line in lines if is_check(line.strip())}


def classified_versions() -> list[str]:
    found = (re.fullmatch(r".*:: (3\.\d+)", classifier) for classifier in PROJECT["classifiers"])
    return [match[1] for match in found if match]


# Workflows


@pytest.mark.parametrize("path", [*FORMS, *WORKFLOWS, ROOT / ".pre-commit-config.yaml"], ids=str)
def test_yaml_can_be_read(path):
    assert isinstance(yaml.safe_load(read(path)), dict)


def test_workflows_run_on_the_versions_that_the_package_names():
    versions = classified_versions()
    assert PROJECT["requires-python"] == f">={versions[0]}"
    for name, job in (("tests", "tests"), ("release", "smoke")):
        document = yaml.safe_load(read(GITHUB / "workflows" / f"{name}.yml"))
        assert document["jobs"][job]["strategy"]["matrix"]["python"] == versions
    for workflow in WORKFLOWS:
        for step in steps_of(workflow):
            version = step.get("with", {}).get("python-version", versions[0])
            assert version in [*versions, "${{ matrix.python }}"]


def test_workflows_run_the_checks_of_the_local_script():
    script = read(ROOT / ".ci" / "run")
    local = checks_in(script.splitlines())
    tests = GITHUB / "workflows" / "tests.yml"
    assert checks_in(commands_of(tests)) == local
    assert len(local) == 6
    (spark_versions,) = re.findall(r"for version in ([\d. ]+);", script)
    jobs = yaml.safe_load(read(tests))["jobs"]
    assert jobs["older-spark"]["strategy"]["matrix"]["spark"] == spark_versions.split()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_an_end(workflow):
    document = yaml.safe_load(read(workflow))
    assert document["permissions"] == {"contents": "read"}
    assert "concurrency" in document
    for name, job in document["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        rights = set(job.get("permissions", {}))
        assert rights <= {"id-token", "pages"}, name
        # Code of a pull request runs in no job that may publish.
        assert not (rights and any("run" in step for step in job["steps"])), name
    for step in steps_of(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", step["uses"]), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


# Guides and templates


@pytest.mark.parametrize("path", [*GUIDES, *FORMS, *WORKFLOWS, ROOT / ".ci" / "run"], ids=str)
def test_extras_exist(path):
    for extras in re.findall(r"(?:zonebloom|\.)\[([a-z,-]+)\]'", read(path)):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), extras


def documentation_pages() -> set[str]:
    """Return the pages that exist, and those that the site lists."""
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    site = ROOT / "mkdocs.yml"
    listed = re.findall(r"[\w/-]+\.md", read(site)) if site.exists() else []
    return pages | set(listed)


def path_exists(name: str) -> bool:
    if name.startswith("docs/") and name.endswith(".md"):
        has_site = (ROOT / "mkdocs.yml").exists()
        return not has_site or name.removeprefix("docs/") in documentation_pages()
    return (ROOT / name).exists() or (PACKAGE / name).exists()


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_links_of_a_guide_lead_somewhere(path):
    text = read(path)
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert path_exists(target), target
    for page in re.findall(rf"{re.escape(SITE)}/([\w-]+)/", text):
        assert path_exists(f"docs/{page}.md"), page


@pytest.mark.parametrize("path", [*GUIDES, *FORMS], ids=lambda path: path.name)
def test_paths_that_a_guide_names_exist(path):
    words = re.findall(r"`([\w./-]+)`", read(path))
    # `base/` in the list of layers is no code span. Names with a dot, such as module.name, and
    # parts of URLs are no paths.
    paths = [word for word in words if "/" in word or word.endswith((".md", ".toml"))]
    # The index lies in a folder beside the data of users.
    missing = [name for name in paths if name != "_zonebloom/NAME" and not path_exists(name)]
    assert missing == []


def test_the_guide_names_parts_of_the_long_test():
    parts = re.search(r"^PARTS = \((.*?)\)", read(ROOT / "tests/trust/__main__.py"), re.M | re.S)
    assert parts is not None
    for guide in GUIDES:
        for named in re.findall(r"tests\.trust --only ([\w,]+)", read(guide)):
            assert set(named.split(",")) <= set(re.findall(r'"(\w+)"', parts[1]))


def test_files_tell_no_machine():
    for path in [*GUIDES, *FORMS, *WORKFLOWS, ROOT / ".pre-commit-config.yaml"]:
        assert not re.search(r"/(home|root|tmp|work|Users)/", read(path)), path


# The changelog


def headings() -> list[tuple[str, str]]:
    """Return the versions of the changelog, and what follows each in its heading."""
    return re.findall(r"^## \[(.+?)\](.*)$", read(ROOT / "CHANGELOG.md"), re.MULTILINE)


def test_the_changelog_begins_with_this_version():
    versions = [version for version, _ in headings() if version != "Unreleased"]
    assert versions[0] == __version__
    assert versions == sorted(versions, key=lambda v: [*map(int, v.split("."))], reverse=True)
    for version, rest in headings()[:-1]:
        assert version == "Unreleased" or re.fullmatch(r" - (unreleased|\d{4}-\d\d-\d\d)", rest)
