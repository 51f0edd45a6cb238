"""Select rows of a table, and read values from it, by a text.

Such texts are the marks in prose and the rows of predictions. They come from files, so
they are data: Python's grammar parses them, and `_read` computes the few kinds of nodes
that `GRAMMAR` lists. A name is a column, a method is one of those below, and nothing is
evaluated.
"""

import ast
import operator
import warnings
from collections.abc import Callable
from functools import reduce
from typing import Any

import pandas as pd

from paraguard_utils.errors import DataError

GRAMMAR = (
    "columns, numbers, 'texts', True and False; == != < <= > >=; in [...] and not in"
    " [...]; and, or, not; + - * /; parentheses; .isna() and .notna();"
    " .str.startswith('x'), .str.endswith('x') and .str.contains('x'); .sum(), .mean(),"
    " .min(), .max() and .nunique()"
)

MAX_LENGTH = 500
"""Characters of a text."""

MAX_DEPTH = 20
"""Levels of parts within parts."""

MAX_NUMBER = 1e15
"""The largest number that a text may have."""

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SUMMARIES: dict[str, Callable[[pd.Series], Any]] = {
    "sum": pd.Series.sum,
    "mean": pd.Series.mean,
    "min": pd.Series.min,
    "max": pd.Series.max,
}
_OF_ANY_ROWS: dict[str, Callable[[pd.Series], Any]] = {
    "isna": pd.Series.isna,
    "notna": pd.Series.notna,
    "nunique": pd.Series.nunique,
}
_TEXT_METHODS: dict[str, Callable[[pd.Series, str], pd.Series]] = {
    "startswith": lambda texts, part: texts.str.startswith(part, na=False),
    "endswith": lambda texts, part: texts.str.endswith(part, na=False),
    "contains": lambda texts, part: texts.str.contains(part, regex=False, na=False),
}


class _Outside(Exception):
    """A part of the text is not in the grammar, or does not fit the table."""


def select_rows(frame: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Return the rows of a table for which a condition holds.

    Raises
    ------
    DataError
        The text is not of the `GRAMMAR`, is no condition, or names no column.

    Examples
    --------
    >>> rates = pd.DataFrame({"system": ["a", "b"], "frr": [0.25, 0.5]})
    >>> select_rows(rates, "frr > 0.3 and system in ['b', 'c']")["system"].tolist()
    ['b']
    """
    return frame[read_condition(frame, condition)]


def read_condition(frame: pd.DataFrame, condition: str) -> pd.Series:
    """Return whether a condition holds for each row; errors as `select_rows`."""
    return _apply(_read_mask, frame, condition)


def read_values(frame: pd.DataFrame, expression: str) -> pd.Series:
    """Return the values of an expression: one per row, or a single one.

    Errors are those of `select_rows`.

    Examples
    --------
    >>> rates = pd.DataFrame({"n": [2, 5], "frr": [0.25, 0.5]})
    >>> read_values(rates, "1 - frr").tolist()
    [0.75, 0.5]
    >>> read_values(rates, "n.sum()").tolist()
    [7]
    """
    if expression in frame:
        return frame[expression]
    return pd.Series(_apply(_read, frame, expression))


def _apply(
    read: Callable[[pd.DataFrame, ast.expr], Any], frame: pd.DataFrame, text: str
) -> Any:
    """Parse a text and read its tree; a DataError shows the text."""
    try:
        return read(frame, _parse(text))
    except (_Outside, TypeError, ValueError, ArithmeticError) as error:
        problem = " ".join(str(error).split())
    raise DataError(f"{text[:MAX_LENGTH]!r}: {problem}; allowed are {GRAMMAR}")


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise _Outside(f"it has more than {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those about "\d"
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Outside("it cannot be parsed") from None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [part for node in level for part in ast.iter_child_nodes(node)]
    if level:
        raise _Outside(f"it has more than {MAX_DEPTH} levels")
    return tree


def _read(frame: pd.DataFrame, node: ast.expr) -> Any:
    """Return what a node means: a number, a text, or a value for each row."""
    match node:
        case ast.Name(id=name):
            if name not in frame:
                raise _Outside(f"there is no column {name}")
            return frame[name]
        case ast.Constant(value=str() as value):
            return value
        case ast.Constant(value=int() | float() as value) if value <= MAX_NUMBER:
            return value
        case ast.BoolOp(op=sign, values=parts):
            masks = [_read_mask(frame, part) for part in parts]
            return reduce(_OPERATORS[type(sign)], masks)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_read_mask(frame, part)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_read_numbers(frame, part)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            numbers = (_read_numbers(frame, part) for part in (left, right))
            return _OPERATORS[type(sign)](*numbers)
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _compare(_read_rows(frame, left), sign, right, frame)
        case ast.Call(
            func=ast.Attribute(value=part, attr=method), args=[], keywords=[]
        ):
            if method in _SUMMARIES:
                return _SUMMARIES[method](pd.Series(_read_numbers(frame, part)))
            if method in _OF_ANY_ROWS:
                return _OF_ANY_ROWS[method](_read_rows(frame, part))
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=part, attr="str"), attr=name),
            args=[ast.Constant(value=str(literal))],
            keywords=[],
        ) if name in _TEXT_METHODS:
            texts = _read_rows(frame, part)
            if pd.api.types.is_numeric_dtype(texts):
                raise _Outside(f"{ast.unparse(part)!r} has no texts")
            return _TEXT_METHODS[name](texts, literal)
    raise _Outside(f"{ast.unparse(node)!r} is not allowed")


def _compare(
    values: pd.Series, sign: ast.cmpop, right: ast.expr, frame: pd.DataFrame
) -> pd.Series:
    """Compare the values of the rows with a list, a number, a text or others."""
    match sign, right:
        case ast.In() | ast.NotIn(), ast.List(elts=parts) | ast.Tuple(elts=parts):
            is_in = values.isin([_read(frame, part) for part in parts])
            return is_in if isinstance(sign, ast.In) else ~is_in
    if type(sign) not in _OPERATORS:
        raise _Outside("after 'in' comes a list")
    return _OPERATORS[type(sign)](values, _read(frame, right))


def _read_rows(frame: pd.DataFrame, node: ast.expr) -> pd.Series:
    """Return a value for each row."""
    values = _read(frame, node)
    if not isinstance(values, pd.Series):
        raise _Outside(f"{ast.unparse(node)!r} is no column")
    return values


def _read_mask(frame: pd.DataFrame, node: ast.expr) -> pd.Series:
    """Return whether each row is meant."""
    values = _read(frame, node)
    if not isinstance(values, pd.Series) or not pd.api.types.is_bool_dtype(values):
        raise _Outside(f"{ast.unparse(node)!r} is no condition")
    return values


def _read_numbers(frame: pd.DataFrame, node: ast.expr) -> Any:
    """Return a number, or one for each row."""
    values = _read(frame, node)
    if not pd.api.types.is_numeric_dtype(pd.Series(values)):
        raise _Outside(f"{ast.unparse(node)!r} is no number")
    return values
