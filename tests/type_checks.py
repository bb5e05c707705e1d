"""The engine's annotations, shapes included, checked at run time: jaxtyping's import hook, without what it does in
vain.

It wraps functions that annotate nothing too, and builds the checks of a function within a function anew whenever the
outer one runs; on small models that took longer than the models."""

from __future__ import annotations

import ast
from functools import cache

from beartype import beartype
from jaxtyping import _decorator, _import_hook, install_import_hook

checked = cache(beartype)


class Annotated(_import_hook.JaxtypingTransformer):
    """Wraps the functions that annotate something."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        if node.returns or any(one and one.annotation for one in named):
            super().visit_FunctionDef(node)
        else:
            self.generic_visit(node)


def once(make):
    """The same function for the same signature, so that `checked` knows it again."""
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
    install_import_hook("ed_core", "type_checks.checked")
