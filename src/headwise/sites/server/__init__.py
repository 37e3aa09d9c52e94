"""The study's side: an executor whose clients are at sites, and the run that uses it."""
