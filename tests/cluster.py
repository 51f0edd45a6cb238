"""A Ray cluster of two nodes on this machine, in namespaces of its own: loopback only,
and nothing outlives it.

`alone` starts this file there: it brings loopback up and runs what it is given.
`node_ip_address` alone would not do: Ray listens on every address of a machine.
"""

import fcntl
import importlib.util
import os
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
UNSHARE = [
    "unshare",
    *([] if os.geteuid() == 0 else ["-r"]),
    "-n",
    "-p",
    "-f",
    "--mount-proc",
    "--kill-child",
]

PATIENT = {
    "RAY_memory_monitor_refresh_ms": (
        "0"
    ),  # other processes may fill the memory, and Ray would kill workers for it
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_DATA_DEFAULT_WAIT_FOR_MIN_ACTORS_S": (
        "600"
    ),  # both workers are there before the first block is given out
}
"""A busy machine is no error."""

TRIES = 6
"""How often nodes are started: where its helpers take more than some seconds to start,
a node gives up.
"""

NODE = {"num_cpus": 1, "include_dashboard": False}


def alone(*command, **environment):
    """Run a command where there is loopback only; skip the test, with the reason, where
    that cannot be.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: run make cluster")
    tried = subprocess.run(
        [*UNSHARE, sys.executable, HERE, "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(
            "no network namespace can be made here:"
            f" {tried.stderr.strip().splitlines()[-1]}"
        )
    # Paths of sockets are short; and neither a cluster nor a token that is not this
    # test's is to be found.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        own = {
            "HOME": folder,
            "RAY_TMPDIR": folder,
            "PYTHONPATH": str(HERE.parents[1]),
            "RAY_USAGE_STATS_ENABLED": "0",
            **PATIENT,
        }
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "MAKE"))
        }
        return subprocess.run(
            [*UNSHARE, sys.executable, HERE, *map(str, command)],
            env=inherited | own | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def loopback_up():
    """Bring up the loopback interface, as `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(
            any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1)
        )  # SIOCSIFFLAGS, IFF_UP


@contextmanager
def two_nodes():
    """Start two nodes of one processor each, to which this process may connect."""
    import psutil
    import ray
    from ray.cluster_utils import Cluster

    for left in reversed(range(TRIES)):
        try:
            nodes = Cluster(
                initialize_head=True,
                head_node_args=NODE | {"node_ip_address": "127.0.0.1"},
            )
            nodes.add_node(**NODE)
            break
        except Exception:
            if not left:
                raise
            for child in psutil.Process().children(recursive=True):
                child.kill()
    os.environ["RAY_ADDRESS"] = nodes.address
    yield
    # Before the nodes end: a process whose node is gone does not end well
    ray.shutdown()


def workers():
    """Return the process ids of the workers that ask."""
    import psutil

    named = ((process, process.cmdline()) for process in psutil.process_iter())
    return sorted(
        process.pid
        for process, words in named
        if words and words[0].startswith("ray::MapWorker")
    )


if __name__ == "__main__":
    loopback_up()
    sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
