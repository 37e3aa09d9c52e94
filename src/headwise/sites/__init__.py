"""Clients that live at sites, reached over Flower: the `server`'s side, the `site`'s, and what goes between them.

Imports the app and everything below it.
"""

import os

# before flwr and ray are imported, which read them once
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do later; else it warns each time
