"""The engine's annotations, shapes included, checked at run time: jaxtyping's import hook, without what it does in
vain.

It wraps functions that annotate nothing too, keeps a book of dimensions for every call of a function that names none,
and builds the checks of a function within a function anew whenever the outer one runs; on small models that took longer
than the models."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache, update_wrapper
from inspect import isclass
from types import CodeType, FunctionType
from typing import get_args

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeException
from jaxtyping import AbstractArray, TypeCheckError, _decorator, _import_hook, install_import_hook, jaxtyped

beartyped = cache(beartype)
alone = beartype(conf=BeartypeConf(violation_type=TypeCheckError))
DECORATOR = '__import__("type_checks").function'


OF = "__beartype_func"  # where beartype's checks keep the function that they are of
_within: dict[CodeType, FunctionType] = {}  # the checks of a function within a function, made when it was made first


def function(made: FunctionType) -> Callable:
    """A function with its checks."""
    if before := _within.get(made.__code__):
        return alike(before, made)
    found = {
        name: _decorator._destring_annotation(hint, made.__globals__) for name, hint in made.__annotations__.items()
    }
    if not any(map(names_shape, found.values())):
        told, made.__annotations__ = made.__annotations__, found
        try:
            checked = alone(made)
        except BeartypeException:  # what only the other way can tell
            made.__annotations__ = told
        else:
            if "<locals>" in made.__qualname__ and OF in (checked.__kwdefaults__ or ()):
                _within[made.__code__] = checked
            return checked
    return jaxtyped(made, typechecker=beartyped)


def alike(before: FunctionType, made: FunctionType) -> FunctionType:
    """The checks that another function of the same code has."""
    checked = FunctionType(before.__code__, before.__globals__, made.__name__)
    checked.__kwdefaults__ = {**before.__kwdefaults__, OF: made}
    made.__annotations__ = before.__annotations__
    return update_wrapper(checked, made)


def names_shape(hint: object) -> bool:
    parts = hint if isinstance(hint, list) else get_args(hint)
    return (isclass(hint) and issubclass(hint, AbstractArray)) or any(map(names_shape, parts))


class Annotated(_import_hook.JaxtypingTransformer):
    """Wraps the functions that annotate something; and dataclasses, but those that check themselves and take more than
    their fields (`strict`)."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        if any(isinstance(one, ast.Name) and one.id == "strict" for one in node.decorator_list):
            self.generic_visit(node)
            return node
        return super().visit_ClassDef(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.generic_visit(node)
        named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        if node.returns or any(one and one.annotation for one in named):
            decorator = ast.parse(DECORATOR, mode="eval").body
            node.decorator_list.append(ast.copy_location(decorator, node))


def once(make: Callable) -> Callable:
    """The same function for the same signature, so that `beartyped` knows it again."""
    kept = cache(make)

    def made(*args, **more):
        try:
            return kept(*args, **more)
        except TypeError:  # a default that cannot be a key
            return make(*args, **more)

    return made


def install() -> None:
    _import_hook.JaxtypingTransformer = Annotated
    _decorator._make_fn_with_signature = once(_decorator._make_fn_with_signature)
    install_import_hook("ed_core", "type_checks.beartyped")
