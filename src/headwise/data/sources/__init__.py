"""Sources: one file per data set, which locates or downloads it, checks its hash and decodes it."""
