"""`outrider plan`: what a config costs to train and to run, before it is."""
