"""The core as a stranger sees it: names at the package's root, examples that run,
nothing of the study behind it.
"""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import paraguard_utils
from paraguard_lab import core as lab_core
from paraguard_lab import false_refusal_rate, rephrasing_odds
from paraguard_lab.core.inference import share_of_clusters
from paraguard_tools import logs
from paraguard_utils import (
    core,
    disagreement_ratio,
    isolation,
)
from paraguard_utils.core import estimates
from paraguard_utils.core.disagreement import count_decisions, estimate_disagreement
from paraguard_utils.core.estimates import ClusterBootstrap

MODULES = [module.name for module in pkgutil.iter_modules(core.__path__)]
OF_LAB = [
    f"paraguard_lab.core.{module.name}"
    for module in pkgutil.iter_modules(lab_core.__path__)
]
OF_LOGS = [
    f"paraguard_tools.logs.{module.name}"
    for module in pkgutil.iter_modules(logs.__path__)
]


@pytest.mark.parametrize(
    "name", [*(f"paraguard_utils.core.{name}" for name in MODULES), *OF_LAB, *OF_LOGS]
)
def test_examples_run(name):
    assert not doctest.testmod(importlib.import_module(name)).failed


PUBLIC = [getattr(paraguard_utils, name) for name in paraguard_utils.__all__]


@pytest.mark.parametrize(
    "public", [*filter(inspect.isfunction, PUBLIC), rephrasing_odds]
)
def test_public_functions_show_an_example_and_what_is_near(public):
    text = public.__doc__
    assert ">>> " in text and "See Also" in text and "Returns" in text


def test_a_moved_name_works_and_says_where_it_is():
    with pytest.warns(DeprecationWarning, match="write from paraguard_lab instead"):
        assert paraguard_utils.rephrasing_odds is rephrasing_odds


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'dr'"):
        _ = paraguard_utils.dr
    assert set(paraguard_utils.__all__) <= set(dir(paraguard_utils))


@pytest.mark.slow
def test_nothing_of_the_study_is_loaded():
    code = (
        "import sys; "
        + "; ".join(f"import paraguard_utils.core.{name}" for name in MODULES)
        + "; print(*sorted(name for name in sys.modules if"
        " name.startswith('paraguard_utils.')))"
        + "; print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torch',"
        " 'sklearn', 'faiss', 'pyarrow', 'statsmodels', 'matplotlib', 'pandera',"
        " 'pydantic', 'transformers'} - loaded))"
    )
    code = (
        "import pandas, scipy, sys; loaded = {name.partition('.')[0] for name in"
        " sys.modules}; " + code
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = {name.split(".")[1] for name in told[0].split()}
    assert ours == {"core", "errors"} and told[1] == ""


def test_estimates_over_the_same_clusters_are_paired():
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(60), 5)
    refused = rng.random(300) < 0.5
    first, second = (
        disagreement_ratio(refused, cluster, n_resamples=50, random_state=seed)
        for seed in (3, 3)
    )
    assert (first - second) == (0, 0, 0) and (
        first.value,
        first.low,
        first.high,
    ) == tuple(first)
    assert repr(first).startswith("Estimate(") and len(first.draws) == 50
    decided = count_decisions(refused, cluster)
    assert tuple(first) == tuple(
        estimate_disagreement(ClusterBootstrap(range(60), 50, 3), decided)
    ), "the same as the study's"


def test_rates_by_hand():
    refused, cluster = [1, 1, 0, 0, np.nan, 1], list("aaabbb")
    # three of five are refused; of the refused in a one of two others is answered, in b
    # the only other one
    assert false_refusal_rate(refused, cluster).value == pytest.approx(3 / 5)
    assert rephrasing_odds(refused, cluster, tries=1).value == pytest.approx(
        (1 / 2 + 1 / 2 + 1) / 3
    )
    np.testing.assert_allclose(
        isolation(refused, cluster), [1 / 2, 1 / 2, np.nan, np.nan, np.nan, 1]
    )
    nobody = false_refusal_rate([0, 0, 0], list("abc"))
    assert nobody.value == 0 and nobody.low == 0 and 0.5 < nobody.high < 0.8, (
        "exact: 1 - 0.025 ** (1 / 3) = 0.71"
    )
    assert np.isnan(false_refusal_rate([np.nan], ["a"])).all()


@pytest.mark.slow
def test_many_clusters_are_put_together_and_nothing_changes(monkeypatch):
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(400), 4)
    refused = rng.random(1600) < np.repeat(rng.beta(1, 2, 400), 4)

    def all_measures():
        clusters = ClusterBootstrap(range(400), 4000)
        return [
            disagreement_ratio(refused, cluster, n_resamples=4000),
            false_refusal_rate(refused, cluster, n_resamples=4000),
            rephrasing_odds(refused, cluster, n_resamples=4000),
            clusters.mean(cluster, refused),
            share_of_clusters(clusters, range(400), rng.random(400) < 2),
        ]

    apart = all_measures()
    monkeypatch.setattr(estimates, "MAX_SEPARATE_CLUSTERS", 100)
    for one, other in zip(apart, all_measures(), strict=True):
        assert one.value == pytest.approx(other.value)
        assert tuple(other)[1:] == pytest.approx(tuple(one)[1:], abs=0.01), (
            "other resamples of the same clusters"
        )
