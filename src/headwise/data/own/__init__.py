"""A user's own data: `data.toml` describes files, `load` turns them into a `Dataset`, `check` reports problems.

`store` first writes Python objects to such files, so that workers, sites and a resumed run can read them.
"""
