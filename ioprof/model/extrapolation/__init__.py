"""How long a whole training takes, from a recording of its first epochs or of a part of the first.

    cut.py     what the recording shows: epochs, their pace, what is read, what is between them
    asked.py   what `ioprof extrapolate` and `ioprof run --predict-epochs` ask for
    whole.py   the sum over all epochs, with its range, and what would make that smaller

    time = start and end + first epoch + (epochs - 1) later ones + validations + checkpoints
    epoch = its start + steps x the steady time of a step

The steady time is that of the whole loop between the start of an epoch, while the queues of its
workers fill, and the end of a complete one, when they no longer do.
"""
