"""One folder a panel: draw (pure), canvas (the painted surface), view."""
