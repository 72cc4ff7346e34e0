"""Owns the way between a live directory and a store: scan, portable, restore, publish. Needs `cachehome[sync]`."""
