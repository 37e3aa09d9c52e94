"""The side of the data: what a site allows, how it answers orders, what it keeps."""
