"""Jobs over whole corpora by shards: each shard of input becomes one shard of output.

A worker writes a shard under a temporary name, syncs and renames it, and then writes a record that
marks it as finished. An interrupted job is resumed from these files: a new run processes the shards
without a record. One worker runs in this process; several are Ray actors.
"""
