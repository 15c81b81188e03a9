"""The hand-written stub of the native core declares the interface of the compiled module."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip("outrider_native._core")

STUB = Path(__file__).resolve().parents[2] / "native/python/outrider_native/_core.pyi"


def parameters(function: Any) -> list[str]:
    """Names of a compiled function's parameters, in order."""
    (signature,) = function.__nb_signature__
    text = signature[0].replace("outrider_native._core.", "")
    return stub_parameters(ast.parse(readable(text)).body[0])


def readable(signature: str) -> str:
    """Make a signature parsable as Python: array types and defaults are not valid Python."""
    signature = re.sub(r"\\=?\d+", "...", signature)
    while "[dtype" in signature:
        start = signature.index("[dtype")
        signature = signature[:start] + signature[signature.index("]", start) + 1 :]
    return f"{signature}: ..."


def stub_parameters(function: Any) -> list[str]:
    found = function.args
    return [argument.arg for argument in [*found.posonlyargs, *found.args, *found.kwonlyargs]]


def is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list)


def test_every_class_function_and_parameter_is_there() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    public = {name for name in dir(core) if not name.startswith("_")}
    assert functions.keys() | classes.keys() == public
    for name, function in functions.items():
        assert stub_parameters(function) == parameters(getattr(core, name))
    for name, written in classes.items():
        compiled = getattr(core, name)
        methods = {node.name: node for node in written.body if isinstance(node, ast.FunctionDef)}
        assert {n for n in methods if n[0] != "_"} == {n for n in dir(compiled) if n[0] != "_"}
        for method, node in methods.items():
            member = getattr(compiled, method)
            assert is_property(node) == isinstance(member, property), method
            if not is_property(node):
                assert stub_parameters(node) == parameters(member), method
