"""Deal scikit-learn's digits to devices whose classes differ: `python prepare_data.py FOLDER --devices 3`.

Device i gets FOLDER/i with train.npz and test.npz, and a third of the classes (with three devices) that no other has.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def deal(folder: Path, devices: int) -> None:
    """Write every device's folder."""
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    for device, classes in enumerate(np.array_split(np.arange(10), devices)):
        rows = np.random.default_rng(device).permutation(np.flatnonzero(np.isin(labels, classes)))
        held_out = len(rows) // 4
        target = folder / str(device)
        target.mkdir(parents=True)
        for name, chosen in (("test", rows[:held_out]), ("train", rows[held_out:])):
            np.savez(target / f"{name}.npz", images=images[chosen], labels=labels[chosen])
        print(f"{target}: {len(rows) - held_out} images to train on, {held_out} to test on, digits {classes.tolist()}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=3, help="2 to 10 (default: %(default)s)")
    arguments = parser.parse_args()
    if not 2 <= arguments.devices <= 10:
        parser.error(f"--devices: expected 2 to 10; found {arguments.devices}")
    if taken := [i for i in range(arguments.devices) if (arguments.folder / str(i)).exists()]:
        parser.error(f"{arguments.folder / str(taken[0])} is there already; name another folder")
    deal(arguments.folder, arguments.devices)


if __name__ == "__main__":
    main()
