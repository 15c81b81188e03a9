"""Models of other families: one file each, a table of their names beside ours.

A reader says what the description of a model is by its `config.json` (`import_config`), and gives
its weights our names (`import_weights`). What differs only in how numbers are kept (three matrices
where ours is one, a factor, rows that are never read) is done to the weights, where it is exact; a
way to compute that ours do not have is a key of the description.
"""
