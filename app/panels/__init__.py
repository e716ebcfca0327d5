"""One module a panel; of the largest ones a folder, in which `view` is the panel and `draw` is pure."""
