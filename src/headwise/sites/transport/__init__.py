"""Messages between the server and the sites, and Flower, which carries them.

Read `envelope` (what travels, as bytes) and `messages` (orders and reports) first; then `grid`, which sends them with
Flower's public API, and `node`, a site's end of the connection. `superlink` and `supervisor` start processes.
"""
