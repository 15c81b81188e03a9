"""`outrider accelerate`: train a drafter for an existing model from source-language text.

    plan       measure the model's speed; choose how many sentences and updates fit the time
    translate  generate the drafter's training data with the model itself
    train      train a drafter; the model's weights do not change
    measure    compare decoding with and without drafts on held-out sentences

Every stage resumes after an interruption. Choices that depend on the machine are made once and kept
in the working folder.
"""

from outrider.torch.compress.accelerate.run import accelerate

__all__ = ["accelerate"]
