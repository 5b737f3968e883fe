"""The report of a run: typed blocks, figures, and their rendering as one HTML page.

`blocks` knows neither physics nor money; `physics_sections` and `run` make blocks from results; `html` renders
them.
"""
