"""``python -m fedcome_flwr``: the console command ``fedcome``."""

from fedcome_flwr.cli.main import app

app(prog_name="fedcome")
