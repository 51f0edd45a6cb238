"""Build what is committed into `dist/`, and try it where nothing else is: `make dist`,
`make dist TAG=v1.0.0`.

A tag, in the environment variable TAG, must be the package's version. The index's own
checks are twine's.
"""

import os
import re
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

TRIED = """
import sys
import pandas as pd
import paraguard_tools as paraguard

rows = pd.DataFrame({"cluster": list("aabbcc"), "label": ["reject", "accept", *["accept"] * 4]})
print(paraguard.audit(paraguard.Decisions.from_frame(rows)).sentences[0])
assert not {"torch", "pyarrow", "pydantic"} & set(sys.modules)
print(paraguard.__version__)
"""


def call(*command: object, folder: Path = ROOT) -> str:
    """Run a command; return the last line that it prints."""
    done = subprocess.run(
        [str(one) for one in command],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(done.stdout, end="", flush=True)
    return done.stdout.strip().rpartition("\n")[2]


def made_environment(folder: Path, *packages: object) -> Path:
    """Make an environment with packages; return its folder of commands."""
    venv.create(folder, with_pip=True)
    call(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def check_tag(tag: str) -> None:
    """End with one line if a tag is not a version such as v1.0.0."""
    if tag and not re.fullmatch(r"v?\d+\.\d+\.\d+", tag, re.ASCII):
        raise SystemExit(f"the tag {tag[:40]!r} is no version such as v1.0.0")


def release(tag: str = "") -> None:
    """Build, check, install, run the demo and call the functions."""
    check_tag(tag)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tools = made_environment(folder / "tools", "build", "twine")
        for old in DIST.glob("*"):
            old.unlink()
        # what is committed, in another folder: what building leaves behind would be
        # found before what is installed
        call("git", "archive", "--output", folder / "source.tar", "HEAD")
        shutil.unpack_archive(folder / "source.tar", folder / "source", filter="data")
        call(tools / "python", "-m", "build", "--outdir", DIST, folder / "source")
        call(tools / "twine", "check", "--strict", *DIST.iterdir())
        alone = made_environment(folder / "alone", *DIST.glob("*.whl"))
        call(alone / "paraguard", "audit", "--demo", folder=folder)
        version = call(alone / "python", "-c", TRIED, folder=folder)
        if tag and tag != f"v{version}":
            raise SystemExit(f"the tag is {tag}, and the package's version {version}")


if __name__ == "__main__":
    release(os.environ.get("TAG", ""))
