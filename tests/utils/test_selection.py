"""Rows and values that a text selects: by hand, and what is no such text."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_utils.errors import DataError
from paraguard_utils.report import selection

FRAME = pd.DataFrame(
    {
        "name": ["ab", "b.c", None, "bc"],
        "n": [1, 2, 3, 4],
        "x": [0.5, np.nan, -0.5, 2.0],
        "low": [0.1, 0.2, -1.0, 3.0],
        "ok": [True, False, True, False],
        "1 - ci": [9, 8, 7, 6],
    },
    index=[10, 11, 12, 13],
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("n == 2", [11]),
        ("n != 2", [10, 12, 13]),
        ("n < 2 or n >= 4", [10, 13]),
        ("n <= 2 and not ok", [11]),
        ("not (n > 1 and n < 4)", [10, 13]),
        ("not n > 1 and n < 4", [10]),  # `not` is stronger than `and`
        ("n > 3 or n < 2 and ok", [10, 13]),  # `and` is stronger than `or`
        ("ok", [10, 12]),
        ("ok == False", [11, 13]),
        ("x < -0.4", [12]),
        ("x > low", [10, 12]),
        ("x.isna()", [11]),
        ("x.notna() and ok", [10, 12]),
        ("name == 'bc'", [13]),
        ("name in ['ab', 'bc']", [10, 13]),
        ("name not in ('ab',)", [11, 12, 13]),
        ("n in [1, 4]", [10, 13]),
        ("name.str.startswith('b')", [11, 13]),
        ("name.str.endswith('c')", [11, 13]),
        ("name.str.contains('.')", [11]),  # a text, no pattern
        ("n * 2 - 1 > 4", [12, 13]),
        ("n / 2 == 1", [11]),
        ("  n == 1  ", [10]),
    ],
)
def test_rows_by_hand(condition, rows):
    assert selection.select_rows(FRAME, condition).index.tolist() == rows


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("n", [1, 2, 3, 4]),
        ("1 - n", [0, -1, -2, -3]),
        ("1 - ci", [9, 8, 7, 6]),  # a column of that name comes first
        ("(n * (n - 1) / 2).sum()", [10.0]),  # 0 + 1 + 3 + 6
        ("n.max() - n.min()", [3]),
        ("n.mean()", [2.5]),
        ("n > 2 and ok", [False, False, True, False]),
        ("(n > 2).sum()", [2]),
    ],
)
def test_values_by_hand(expression, values):
    assert selection.read_values(FRAME, expression).tolist() == values


HOSTILE = [
    "@pd.io.common.os.system('touch CANARY') == 0",
    "__import__('os').system('touch CANARY') == n",
    "n.__class__.__init__ == n",
    "n.to_pickle('CANARY')",
    "n.to_csv('CANARY') == n",
    "n.pipe(print)",
    "n.apply('to_pickle', args=['CANARY'])",
    "name.str.cat('x')",
    "name.str.match('(a+)+$')",
    "name.str.startswith('a' * 3)",
    "name.str.__class__",
    "name * 1000000 == 'x'",
    "'a' * 999999999 == name",
    "n ** 999 > 1",
    "n << 1 > 1",
    "n // 0 == 1",
    "1 / 0 == n",
    "n == 99999999999999999999",
    "n == 1e999",
    "9" * 400,
    "n == 1j",
    "n == None",
    "n == b'x'",
    "n == f'{n}'",
    "(lambda: n)() == n",
    "[m for m in n]",
    "(m := n) == n",
    "n[0] == 1",
    "n in name",
    "n is 1",
    "1 < n < 3",
    "n.sum(axis=1) > 1",
    "n; n",
    "n\nn",
    "",
    "# n",
    "\0",
    "\ud800 == n",
    "name == '\\ud800'",
    "(" * 450,
    "(" * 100_000 + "n" + ")" * 100_000,
    "not " * 120 + "ok",
    "-" * 450 + "n == 1",
    "missing == 1",
    "name > 3",
    "name < n",
    "n",
    "'text'",
    "True",
    "n == 1 and 'text'",
    "n & ok",
    "n if ok else n",
]


@pytest.mark.parametrize("condition", HOSTILE, ids=lambda text: text[:30])
def test_what_is_outside_of_the_grammar_is_one_error(condition, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        selection.select_rows(FRAME, condition)
    message = str(error.value)
    assert selection.GRAMMAR in message
    assert "\n" not in message and len(message) < 2_000
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(st.text(alphabet="nxok ()[]'\",.<>=!-+*/@_:&|~andorti12", max_size=40))
def test_any_text_is_rows_or_one_error(text):
    try:
        rows = selection.select_rows(FRAME, text)
    except DataError:
        return
    assert set(rows.index) <= set(FRAME.index)


@settings(deadline=None)
@given(
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.integers(-1, 6),
    st.sampled_from(["and", "or"]),
    st.booleans(),
)
def test_conditions_hold_as_python_says_row_by_row(sign, limit, both, negated):
    condition = f"n {sign} {limit} {both} {'not ' * negated}ok"
    compare = {
        "<": lambda n: n < limit,
        "<=": lambda n: n <= limit,
        ">": lambda n: n > limit,
        ">=": lambda n: n >= limit,
        "==": lambda n: n == limit,
        "!=": lambda n: n != limit,
    }[sign]
    join = {"and": all, "or": any}[both]
    expected = [
        place
        for place, n, ok in zip(FRAME.index, FRAME["n"], FRAME["ok"], strict=True)
        if join([compare(n), ok != negated])
    ]
    assert selection.select_rows(FRAME, condition).index.tolist() == expected
