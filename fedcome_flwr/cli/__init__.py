"""The console command ``fedcome``."""
