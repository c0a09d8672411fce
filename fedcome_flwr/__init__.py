"""FedCOME for Flower: consensus aggregation and client selection on heterogeneous data."""

__version__ = "0.1.0"
