"""The engine's annotations, shapes included, checked at run time: jaxtyping's import hook, without what it does in
vain.

It wraps functions that annotate nothing too, keeps a book of dimensions for every call of a function that names none,
and builds the checks of a function within a function anew whenever the outer one runs; on small models that took longer
than the models."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from inspect import isclass
from typing import get_args

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeException
from jaxtyping import AbstractArray, TypeCheckError, _decorator, _import_hook, install_import_hook, jaxtyped

beartyped = cache(beartype)
alone = beartype(conf=BeartypeConf(violation_type=TypeCheckError))
DECORATOR = '__import__("type_checks").function'


def function(made: Callable) -> Callable:
    """A function with its checks."""
    if "<locals>" not in made.__qualname__:
        found = {
            name: _decorator._destring_annotation(hint, made.__globals__) for name, hint in made.__annotations__.items()
        }
        if not any(map(names_shape, found.values())):
            told, made.__annotations__ = made.__annotations__, found
            try:
                return alone(made)
            except BeartypeException:  # what only the other way can tell
                made.__annotations__ = told
    return jaxtyped(made, typechecker=beartyped)


def names_shape(hint: object) -> bool:
    parts = hint if isinstance(hint, list) else get_args(hint)
    return (isclass(hint) and issubclass(hint, AbstractArray)) or any(map(names_shape, parts))


class Annotated(_import_hook.JaxtypingTransformer):
    """Wraps the functions that annotate something."""

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
