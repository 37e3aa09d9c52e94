"""Clients that live at sites and are reached over Flower: the `server` side, the `site` side, and what they exchange.

Imports the app and everything below it.
"""

import os

# flwr and ray read these once, on import
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default; it warns without
