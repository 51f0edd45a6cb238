"""Asking on a Ray cluster: two nodes, a worker that is killed, and the rows of the
plain run.
"""

import builtins
import json
import os
import re
import signal
import sys
from pathlib import Path

import cluster
import pandas as pd
import pytest
from asking import ask, identical
from test_commands import SEEDS, clone  # noqa: F401 (a fixture)

from paraguard_lab.settings import FollowUpSettings
from paraguard_tools.servers import ray_cluster, served
from paraguard_utils import paths, settings, stores
from paraguard_utils.errors import ModelError, SettingsError
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, loading, trace_store

N, BATCH, TOKENS = 24, 4, 12
NAME = "smollm2-135m-instruct"


def frame(*names):
    return pd.DataFrame({"prompt_id": names, "tail_mass": range(len(names))})


def test_a_row_that_comes_twice_is_taken_once_and_one_that_does_not_come_is_missed():
    blocks = [frame("a", "b"), frame("a", "b"), frame("b", "c")]
    found = pd.concat(ray_cluster.deduplicate_rows(blocks, ["a", "b", "c"]))
    assert found["prompt_id"].tolist() == ["a", "b", "c"]
    given = ray_cluster.deduplicate_rows(blocks, ["a", "b", "c", "d", "e"])
    assert len(next(given)) == 2
    with pytest.raises(
        ModelError, match="no row for 2 prompts; run the same command again"
    ):
        list(given)


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name.partition(".")[0] == "ray":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ModelError, match=re.escape("'paraguard-utils[cluster]'")):
        ray_cluster.connect_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize("more", [{"base_url": "file:///tmp/x"}, {"judge": NAME}])
def test_what_a_cluster_cannot_do_is_said_at_once(more):
    with pytest.raises(SettingsError, match="device"):
        settings.check_settings(
            {"store": "live", "corpus": "x", "model": NAME, "device": "ray", **more},
            FollowUpSettings,
        )


def test_a_served_model_is_asked_from_here_whatever_the_device():
    given = {
        "store": "live",
        "corpus": "x",
        "model": "openai/m",
        "base_url": "http://host/v1",
        "device": "ray",
    }
    config = settings.check_settings(given, FollowUpSettings)
    assert isinstance(
        backends.resolve_backends(config)[0].open(config),
        served.ServerBackend,
    )


def sample():
    return (
        stores.Store("recorded")
        .read("corpus", "paraguard_mini")
        .sample(N, random_state=3)
    )


def weights_and_a_killed_worker():
    """Ask on the cluster, and kill one of its two workers when the first batch is kept;
    run by the next test.
    """
    model, real = (
        ray_cluster.ClusterBackend(loading.resolve_model(NAME), "float32", "error"),
        trace_store.TraceParts.add,
    )
    killed = []

    def add(self, rows):
        real(self, rows)
        if not killed:
            killed.extend(cluster.workers())
            os.kill(killed[0], signal.SIGKILL)

    trace_store.TraceParts.add = add
    traces = ask(sample(), model, batch=BATCH, tokens=TOKENS)
    trace_store.TraceParts.add = real
    (file,) = paths.RESULTS.rglob("*--safety.parquet")
    parts = ask(sample(), model, batch=BATCH, tokens=TOKENS)
    identical(traces, parts)
    trace_store.write_tokens(stores.Store("test"), model, [traces])
    meta = stores.read_meta(file)
    (paths.RESULTS / "meta.json").write_text(json.dumps(meta | {"killed": killed}))
    model.load = ray_cluster.partial(
        ray_cluster.load_on_worker, NAME, "0" * 64, "float32", "error"
    )
    with pytest.raises(
        ModelError, match=f"model {NAME}: a machine of the cluster has other weights"
    ):
        ask(sample().head(2), model, system_prompt="none", batch=BATCH, tokens=TOKENS)


@pytest.mark.slow
def test_two_nodes_work_and_a_killed_worker_loses_and_doubles_nothing(results):
    done = cluster.alone(
        sys.executable, __file__, weights_and_a_killed_worker.__name__, results
    )
    assert done.returncode == 0, done.stdout
    meta = json.loads((results / "meta.json").read_text())
    assert len(meta["killed"]) == 2, "a worker a node"
    assert len(meta["nodes"]) == 2 and min(meta["nodes"].values()) > 0
    assert sum(meta["nodes"].values()) == meta["asked_now"] == N
    there = stores.Store("test").read("traces", "mine", meta["system"])
    tokens = stores.Store("test").read("tokens", meta["system"].partition("--")[0])
    (results / "test").rename(results / "clustered")
    plain = loading.load_model(loading.resolve_model(NAME))
    here = ask(sample(), plain, batch=BATCH, tokens=TOKENS)
    identical(here, there)
    assert labelling.label_answers(here, sample()).equals(
        labelling.label_answers(there, sample())
    )
    trace_store.write_tokens(
        stores.Store("test"), trace_store.local.LocalBackend(plain), [here]
    )
    identical(tokens, stores.Store("test").read("tokens", plain.name))


def block_for_a_cluster(page):
    """Return the lines of a page's block about a cluster, and the one for the other
    machines, without what is said.
    """
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(
        r"```\n((?:[^`]+\n)?ray start --head.*?)```", text, flags=re.DOTALL
    )
    other = re.search(r"(ray start --address.*)", block)[1]
    return [line.partition("  #")[0].strip() for line in block.splitlines()], other


@pytest.mark.slow
def test_the_documented_lines_for_a_cluster_run_as_written_up_to_what_asks_nothing(
    clone,  # noqa: F811
    tiny_folder,
    tmp_path,
):
    lines, other = block_for_a_cluster(paths.ROOT / "docs" / "scale.md")
    *before, head, run = lines
    tries = [
        f"for _ in $(seq {cluster.TRIES}); do {line} && break; ray stop --force; done"
        for line in (head, other)
    ]
    hub = re.search(r"--model (\S+)", run)[1]
    run = run.replace("paraguard run", "paraguard run 02")
    written = [
        *before,
        *(line.replace("HEAD", "127.0.0.1") for line in tries),
        run.replace(hub, f"'{tiny_folder}'"),
    ]
    script = tmp_path / "lines.sh"
    script.write_text("\n".join(written) + "\n")
    environment = {"PYTHONPATH": str(clone), "PARAGUARD_CACHE": str(paths.CACHE)}
    done = cluster.alone(
        "bash", "-c", f"cd '{clone}' && bash '{script}'", **environment
    )
    assert done.returncode == 0, done.stdout
    assert "02_querying done" in done.stdout and "Traceback" not in done.stdout
    files = (clone / "results" / "live" / "traces" / "paraguard_mini").glob(
        "tiny-chat-*.parquet"
    )
    asked = [stores.read_meta(file) for file in files]
    assert len(asked) == 3
    for meta in asked:
        assert (
            meta["device"] == "ray"
            and sum(meta["nodes"].values()) == meta["asked_now"] == SEEDS * 6
        )


if __name__ == "__main__":  # in namespaces of its own, with a cluster
    paths.RESULTS = Path(sys.argv[2])
    with cluster.two_nodes():
        globals()[sys.argv[1]]()
