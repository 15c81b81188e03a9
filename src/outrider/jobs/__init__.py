"""Corpus-wide work by shards: one shard of input becomes one shard of output.

A worker writes its shard under a temporary name, syncs it, renames it, and then writes the record
that makes it count. Files are the truth: whatever was killed, a new run does what has no record.
One worker runs in this process; several are actors of Ray, which places and restarts them.
"""
