"""A Flower App whose clients are devices, each with its own folder of data."""
