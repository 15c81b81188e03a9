"""YAML with the core schema of YAML 1.2.

PyYAML reads YAML 1.1, where `no` (Norwegian) is false, `1e-4` a string, `12:30` a number and `010`
8, and where the second of two equal keys overrides the first. Here these are a string, a float, a
string, 10 and an error.
"""

import re
from typing import Any

import yaml

_PLAIN_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "merge": r"<<",
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    message = f"key {key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full instead of `&id001`."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Quote Unicode line breaks, which PyYAML would fold into a space."""
        style = '"' if any(mark in data for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _tag, _pattern in _PLAIN_WORDS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None
        )


def parse(text: str) -> Any:
    """Parse a text; raise a ValueError with the place and the problem in one line."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump(value: Any, *, flow: bool = False) -> str:
    """Return plain values as YAML; with `flow`, on one line."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=flow,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000 if flow else 100,
    )
    return text.removesuffix("\n").removesuffix("\n...") if flow else text
