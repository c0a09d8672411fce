"""The paper's tables and figures, run on the quickstart's Flower App."""
