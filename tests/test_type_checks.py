"""The annotations are checked while tests run: of functions, of functions within functions, and shapes among them."""

from __future__ import annotations

import ast
from types import FunctionType

import pytest
import torch
from jaxtyping import TypeCheckError
from jaxtyping._import_hook import Typechecker
from type_checks import Annotated

from ed_core.sweeps import metrics

CODE = """
from __future__ import annotations
from collections.abc import Callable
from jaxtyping import Float
from torch import Tensor

def plain(value):
    return value

def outer(factor):
    def inner(value: int, by: int = 2, *, more: list = []) -> int:
        return value * factor
    return inner

class Holder:
    def result(self) -> int:
        return "no number"

    def rows(self, kept: list[int], of: Callable[[Float[Tensor, "a b"]], int] | None = None) -> int:
        return len(kept)

    def square(self, values: Float[Tensor, "a a"]) -> Float[Tensor, "a"]:
        return values.sum()
"""


@pytest.fixture(scope="module")
def found() -> dict:
    tree, space = ast.parse(CODE), {}
    Annotated(typechecker=Typechecker("type_checks.beartyped")).visit(tree)
    exec(compile(ast.fix_missing_locations(tree), "it", "exec"), space)
    return space


def test_what_is_annotated_is_checked(found):
    holder = found["Holder"]()
    for call in (holder.result, lambda: holder.rows((1,)), lambda: holder.rows(["1"])):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeCheckError):
        holder.result()
    assert holder.rows([1]) == 1
    assert isinstance(found["plain"], FunctionType) and not hasattr(found["plain"], "__wrapped__")


def test_a_shape_is_checked_against_what_the_same_call_has(found):
    square = found["Holder"]().square
    with pytest.raises(TypeCheckError, match="parameters"):
        square(torch.zeros(2, 3))
    with pytest.raises(TypeCheckError, match="return value"):
        square(torch.zeros(2, 2))


def test_a_function_within_a_function_is_checked_each_time_it_is_made_and_is_its_own(found):
    first, second = found["outer"](2), found["outer"](3)
    assert (first(1), second(1), second(1, by=4, more=[1])) == (2, 3, 3)
    assert first.__wrapped__ is not second.__wrapped__ and "int" in str(second.__annotations__)
    for inner in (first, second):
        with pytest.raises(TypeCheckError, match="value"):
            inner("1")
    with pytest.raises(TypeCheckError, match=r"inner\(\) return 0.5"):
        found["outer"](0.5)(1)


def test_the_engines_shapes_are_checked():
    with pytest.raises(TypeCheckError, match="metrics.kl"):
        metrics.kl(torch.zeros(2, 3), torch.zeros(2, 4))
