"""How sure a comparison is: intervals over draws of the partition, seeds and clients. No torch.

May import errors.
"""
