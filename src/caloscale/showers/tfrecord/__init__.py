"""Prepared showers: TFRecord shards and their manifest."""
