"""The report of a run: blocks that know neither physics nor money, made from results, and rendered as one HTML page."""
