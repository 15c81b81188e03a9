"""Readers of other families' models, one file a family.

`import_config` converts a `config.json` to a spec, `import_weights` renames the weights.
Differences of storage (three matrices instead of one, a constant factor, unused rows) are resolved
in the weights, exactly; differences of computation are keys of the spec.
"""
