"""Run a whole Flower App on this machine."""
