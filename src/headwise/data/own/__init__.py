"""A user's own data: `data.toml` describes files, `read` turns them into a `Dataset`, `check` says what is wrong where.

Objects from Python become such files first (`store`), so that workers, sites and a resumed run need no object.
"""
