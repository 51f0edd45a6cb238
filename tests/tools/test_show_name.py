"""Names on a terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_tools.logs.names import show_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("my model, safety", "my model, safety"),
        ("größe 名前", "größe 名前"),
        ("A\n::add-mask::0", r"A\n::add-mask::0"),
        ("::error::x", r"\x3a:error::x"),
        (" ::error::x", r"\x3a:error::x"),
        ("a ##[error]x", r"a \x23#[error]x"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("a\u2028b\x85c\rd", r"a\u2028b\x85c\rd"),
        ("\ud800", r"\ud800"),
        ("x" * 300, "x" * 100 + " ..."),
    ],
)
def test_a_name_is_one_visible_line(name, shown):
    assert show_name(name) == shown


@settings(deadline=None)
@given(st.text(max_size=150))
def test_any_name_is_printable_and_no_command(name):
    shown = show_name(name)
    assert shown.isprintable()
    assert not shown.lstrip().startswith("::") and "##[" not in shown
