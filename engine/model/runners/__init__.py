"""Ways through one forward."""
