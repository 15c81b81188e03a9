"""From text files to batches: corpora, cleaning, tokenizers, shards and the batch plan."""
