"""The mathematics of FedCOME, on NumPy and SciPy only: it knows neither Flower nor PyTorch."""
