"""Which part of a model a weight or an activation belongs to, by name.

A layer's parts are told apart, and attentions by their kind: `decoder.attention.sliding`,
`decoder.cross`, `decoder.feedforward`. Everything else goes under the model's own child, such as
`tokens` or `encoder`, whose norms and residuals stand beside its layers.
"""

from torch import nn

from outrider.torch.nn.layer.block import Block

__all__ = ["HEAD", "part_of", "part_paths"]

HEAD = "head"
"""What the model itself computes: the scores of all words and the loss."""


def part_paths(model: nn.Module) -> dict[str, str]:
    """Return the part of every module that begins one, by its path."""
    found = {name: name for name, _ in model.named_children()}
    for path, module in model.named_modules():
        if isinstance(module, Block):
            side = path.partition(".")[0]
            kind = getattr(module.attention, "attention", module.attention)
            name = getattr(kind, "kind", type(kind).__name__.lower())
            found[f"{path}.attention"] = f"{side}.attention.{name}"
            found[f"{path}.cross"] = f"{side}.cross"
            found[f"{path}.feedforward"] = f"{side}.feedforward"
    return found


def part_of(path: str, paths: dict[str, str]) -> str:
    """Return the innermost part that a module or a weight stands in."""
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return paths.get(path, HEAD)
