"""`outrider accelerate`: a model that exists, made faster, from text in its source language alone.

    text       sentences of the files, as many as there is time for
    translate  the model translates them: what it would say is what a drafter has to guess
    train      a drafter beside the model, whose weights stay as they are
    measure    on sentences that were held out: the same text, and how much sooner

Every stage resumes where it was interrupted. What depends on the machine (how many sentences, how
many updates) is settled once, when a stage first begins, and kept in the folder of the work.
"""

from outrider.torch.compress.accelerate.run import accelerate

__all__ = ["accelerate"]
