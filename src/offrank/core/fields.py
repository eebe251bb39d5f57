"""What the fields of a dataclass mean: the comment at the end of a field's line is its documentation."""

from __future__ import annotations

import ast
import inspect
import tokenize
from dataclasses import fields
from io import StringIO
from textwrap import dedent
from typing import Any


def meanings(cls: type[Any]) -> dict[str, str]:
    """The meaning of every field of a dataclass, by name: its comment, or else that of the base class it overrides.
    Empty where there is none, or no source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _comments(base)
    return {f.name: found.get(f.name, "") for f in fields(cls)}


def _comments(cls: type[Any]) -> dict[str, str]:
    """The comments of the fields that the body of a class itself has."""
    try:
        source = dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # built in, or installed without its source
        return {}
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    return {
        node.target.id: comments[node.end_lineno]
        for node in ast.iter_child_nodes(ast.parse(source).body[0])
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in comments
    }
