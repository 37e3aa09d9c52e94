"""Models: each family is one file; `split` decides once what is body and what is head."""
