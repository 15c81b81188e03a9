"""Neural network layers: attention, positions, blocks and caches.

Shape suffixes of the whole project:

    B batch            T query or target length    S key or source length
    D model width      H heads                     G key-value heads
    K head width       F feed-forward width        V vocabulary
    W window           C cache slots               N beams
    P drafted positions                            1 an axis that broadcasts

A repeated letter means an equal size. Masks are boolean; True marks what is kept.
Rows are padded on the right.
"""
