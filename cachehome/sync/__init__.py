"""Live directory to store and back: scan, portable, restore, publish. Needs `cachehome[sync]`."""
