"""One command per file, or a few that belong together: each reads its flags, calls a room below, and prints.

A command is imported when it is used, so that `headwise --help` does not import torch.
"""
