"""One command per file: it reads its flags, calls `app` or a room below it, and prints.

A command is imported when it is used, so that `headwise --help` does not import torch.
"""
