"""Tensors and nothing else: attention, positions, blocks, caches. No text, no decoding.

One legend of shape suffixes serves the whole project:

    B batch            T query or target length    S key or source length
    D model width      H heads                     G key-value heads
    K head width       F feed-forward width        V vocabulary
    W window           C cache slots               N beams
    P drafted positions                            1 an axis that broadcasts

A repeated letter means an equal size. Masks are boolean and say what to keep: True is visible.
Rows are padded on the right.
"""
