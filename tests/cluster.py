"""A Ray cluster of two nodes on this machine, in namespaces of its own: loopback only, and nothing outlives it.

`alone` starts this file there: it brings loopback up and runs what it is given. `node_ip_address` alone would not do:
Ray listens on every address of a machine.
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
UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-n", "-p", "-f", "--mount-proc", "--kill-child"]

PATIENT = {
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_DATA_DEFAULT_WAIT_FOR_MIN_ACTORS_S": "600",  # both workers are there before the first block is given out
}
"""A busy machine is no error."""


def alone(*command, **environment):
    """Run a command where there is loopback only; skip the test, with the reason, where that cannot be."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: run make cluster")
    tried = subprocess.run([*UNSHARE, sys.executable, HERE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here: {tried.stderr.strip().splitlines()[-1]}")
    # Paths of sockets are short; and a cluster that this test does not start is not to be found.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        own = {"RAY_TMPDIR": folder, "PYTHONPATH": str(HERE.parents[1]), "RAY_USAGE_STATS_ENABLED": "0", **PATIENT}
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MAKE"))}
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
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP


@contextmanager
def two_nodes():
    """Start two nodes of one processor each, to which this process then connects."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = nodes.address
    yield
    nodes.shutdown()


def workers():
    """Return the process ids of the workers that ask."""
    import psutil

    named = ((process, process.cmdline()) for process in psutil.process_iter())
    return sorted(process.pid for process, words in named if words and words[0].startswith("ray::MapWorker"))


if __name__ == "__main__":
    loopback_up()
    sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
