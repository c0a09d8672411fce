"""The rooms that know Flower's server: records to client updates, and the strategies."""
