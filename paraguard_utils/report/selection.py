"""Select rows of a table, and read values from it, by a text.

Such texts are the marks in prose and the rows of predictions. They come from files, so
they are data: Python's grammar parses them, and `_compute` knows the few kinds of nodes
that `GRAMMAR` lists. A name is a column, a method is one of those below, and nothing is
evaluated.
"""

import ast
import operator
import re
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

MAX_PARTS = 200
"""Names, signs and the like in a text."""

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
_SUMMARIES = ("sum", "mean", "min", "max")
"""Methods of numbers."""

_OF_ANY_VALUES = ("isna", "notna", "nunique")
"""Methods of any column."""

_OF_TEXTS = ("startswith", "endswith", "contains")
"""Methods of texts."""


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
    return _read_text(frame, condition, "condition")


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
    return pd.Series(_read_text(frame, expression))


def _read_text(frame: pd.DataFrame, text: str, kind: str = "") -> Any:
    """Return what a text means (`_read`); a DataError shows the text."""
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError(f"it has more than {MAX_LENGTH} characters")
        tree = ast.parse(text.strip(), mode="eval").body
        if len(list(ast.walk(tree))) > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS} parts")
        return _read(frame, tree, kind)
    except (SyntaxError, MemoryError, RecursionError):
        problem = "it cannot be parsed"
    except (TypeError, ValueError, ArithmeticError) as error:
        problem = " ".join(str(error).split())
    raise DataError(f"{text[:MAX_LENGTH]!r}: {problem}; allowed are {GRAMMAR}")


def _read(frame: pd.DataFrame, node: ast.expr, kind: str = "") -> Any:
    """Return what a node means: a number, a text, or a value for each row.

    ValueError unless it is of the `kind`: "number" (or one for each row), "column",
    "condition" or "text" (for each row), or "" for any.
    """
    values = _compute(frame, node)
    is_column = isinstance(values, pd.Series)
    is_number = pd.api.types.is_numeric_dtype(pd.Series(values))
    fits = {
        "": True,
        "column": is_column,
        "condition": is_column and pd.api.types.is_bool_dtype(values),
        "text": is_column and not is_number,
        "number": is_number,
    }
    if not fits[kind]:
        raise ValueError(f"{ast.unparse(node)!r} is no {kind}")
    return values


def _compute(frame: pd.DataFrame, node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            if name not in frame:
                raise ValueError(f"there is no column {name}")
            return frame[name]
        case ast.Constant(value=str() as value):
            return value
        case ast.Constant(value=int() | float() as value) if value <= MAX_NUMBER:
            return value
        case ast.BoolOp(op=sign, values=parts):
            masks = [_read(frame, part, "condition") for part in parts]
            return reduce(_OPERATORS[type(sign)], masks)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_read(frame, part, "condition")
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_read(frame, part, "number")
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            numbers = [_read(frame, part, "number") for part in (left, right)]
            return _OPERATORS[type(sign)](*numbers)
        case ast.Compare(left=left, ops=[ast.NotIn()], comparators=right):
            return ~_compute(frame, ast.Compare(left, [ast.In()], right))
        case ast.Compare(left, [ast.In()], [ast.List(parts) | ast.Tuple(parts)]):
            values = _read(frame, left, "column")
            return values.isin([_read(frame, part) for part in parts])
        case ast.Compare(left, [sign], [right]) if type(sign) in _OPERATORS:
            values = _read(frame, left, "column")
            return _OPERATORS[type(sign)](values, _read(frame, right))
        case ast.Call(
            ast.Attribute(ast.Attribute(part, "str"), name),
            [ast.Constant(str() as sought)],
            [],
        ) if name in _OF_TEXTS:
            texts = _read(frame, part, "text").str
            sought = re.escape(sought) if name == "contains" else sought
            return getattr(texts, name)(sought, na=False)
        case ast.Call(ast.Attribute(part, name), [], []) if name in _SUMMARIES:
            return getattr(pd.Series(_read(frame, part, "number")), name)()
        case ast.Call(ast.Attribute(part, name), [], []) if name in _OF_ANY_VALUES:
            return getattr(_read(frame, part, "column"), name)()
    raise ValueError(f"{ast.unparse(node)!r} is not allowed")
