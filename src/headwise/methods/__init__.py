"""Methods: one file each, found by its file name."""
