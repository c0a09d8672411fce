"""``python -m fedcome_flwr``: the console command ``fedcome``."""

from .cli.main import app

app(prog_name="fedcome")
