"""One command per file: it reads its flags, calls `app` or a room below it, and prints.

A command is imported when it is asked for, so that `headwise --help` needs no torch.
"""
