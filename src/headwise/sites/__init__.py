"""Clients on other machines. A server sends orders to sites over Flower; each site trains its clients and reports.

`transport/` carries messages. An order or report is a `SiteMessage`: JSON text plus records as bytes (`envelope`,
`messages`). `grid` sends them with Flower's public API; `node` is a site's end of the connection, with Flower's private
one. `superlink` starts Flower's commands and explains why a server can't be reached; `supervisor` keeps the processes
of one command together.

`server/` is the side of the study. `control` implements `headwise server` and `headwise deploy`; Flower then starts
`deployment`, the process of a run. Its executor `remote` turns the driver's jobs into one order per site, and `nodes`
knows which sites are connected and which clients they have.

`site/` is the side of the data. `running` is `headwise site start`: it starts a node and a `worker`, in which a `site`
answers messages. Before anything runs, `policy` checks the order against site.toml (`site_file`) and `ledger` charges
its privacy cost. `own_data` reads the data; `models` lists and exports what the site has trained; `review` shows what a
study would do before it is allowed.

`secagg/` hides single messages from the server: `protocol` is the mathematics, and `round` has the messages and both
sides of a masked round.

Both sides use `facts` (what a site reports about its data, and the experiment as sites receive it), `states` (personal
states on a site's disk), `offers` (for sites that join after the last round) and `keys`. `apps` holds Flower's entry
points. Sites import the app and everything below it; `server` and `site` never import each other.
"""

import os

# flwr and ray read these once, on import
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default, without which it warns
