"""`CITATION.cff`: valid, and in agreement with the package and the README."""

import re

import pytest
import yaml

from paraguard_utils import __version__, paths

FILE = paths.ROOT / "CITATION.cff"
CITATION = yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_it_is_valid():
    cffconvert = pytest.importorskip(
        "cffconvert", reason="requirements-citation.txt is not installed"
    )
    cffconvert.Citation(FILE.read_text(encoding="utf-8")).validate()


def test_it_names_this_version():
    assert CITATION["version"] == __version__


def test_it_names_the_paper_that_the_readme_names():
    paper, readme = (
        CITATION["preferred-citation"],
        (paths.ROOT / "README.md").read_text(encoding="utf-8"),
    )
    (title,) = re.findall(r"^ *title *= \{(.*)\},$", readme, flags=re.MULTILINE)
    (authors,) = re.findall(r"^ *author *= \{(.*)\},$", readme, flags=re.MULTILINE)
    (eprint,) = re.findall(r"^ *eprint *= \{(.*)\},$", readme, flags=re.MULTILINE)
    assert paper["title"] == re.sub("[{}]", "", title)
    assert (
        " and ".join(
            f"{one['given-names']} {one['family-names']}" for one in paper["authors"]
        )
        == authors
    )
    assert paper["identifiers"][0]["value"] == f"arXiv:{eprint}"
    assert (
        paper["url"] == f"https://arxiv.org/abs/{eprint}"
        and f"]({paper['url']})" in readme
    )
