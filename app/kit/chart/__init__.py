"""Charts: plots with axes (pyqtgraph), and painted surfaces of bars and grids."""
