"""How a model lies on disk: what its `config.json` says, and its weights as mapped arrays.

Nothing here computes, and nothing here needs PyTorch: `models` builds a model from what this room
hands out, and the native core is given it as it is. A folder is untrusted input, so whatever is
read is checked, and what is wrong becomes one sentence that names the file.
"""
