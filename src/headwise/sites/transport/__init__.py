"""Messages between the server and the sites, and Flower, which carries them."""
