"""Frozen records that travel between the stages; the bottom layer, importing nothing of paceline."""
