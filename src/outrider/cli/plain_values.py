"""Words of a command line as values, where that is plain.

Typer builds a validator of pydantic's for every parameter of a command, given or not, which takes
longer than to load a model and translate a sentence. A parameter that is not given needs none, nor
does a word or a whole number that reads as one. Whatever else there is to say of a value, what is
wrong with it above all, Typer says as ever.
"""

import re
from typing import Any

__all__ = ["read_plainly"]

WHOLE = re.compile(r"-?[0-9]{1,9}")


def read_plainly(command: Any) -> None:
    """Let the parameters of a command, and of those below it, read plain values by themselves."""
    for inner in getattr(command, "commands", {}).values():
        read_plainly(inner)
    listed = command.get_params

    def get_params(context: Any) -> Any:
        found = listed(context)  # `--help` is added here
        for parameter in found:
            if getattr(parameter, "_runtime_param", parameter) is None:
                parameter._runtime_param = _Plain()
        return found

    command.get_params = get_params


class _Plain:
    """Stands where Typer puts a validator when it first needs one."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; what is not plain is left to Typer from then on."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        wanted, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if wanted is str and type(value) is str:
            return value
        if many and wanted == list[str] and all(type(one) is str for one in value):
            return list(value)
        bounded = info.min is not None or info.max is not None
        if wanted is int and type(value) is str and WHOLE.fullmatch(value) and not bounded:
            return int(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
