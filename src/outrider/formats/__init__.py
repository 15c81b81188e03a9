"""Model folders: `config.json` as a spec, and weights as mapped arrays; PyTorch is not needed.

A folder is untrusted input: all values are checked, and errors name the file.
"""
