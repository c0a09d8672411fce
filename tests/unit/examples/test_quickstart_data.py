"""Who holds which images in the quickstart."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")
datasets = pytest.importorskip("datasets", reason="needs the extra data")


@pytest.fixture
def modules():
    from quickstart import data, partition, settings

    return data, partition, settings.DataSettings


def split_labels(num_classes=10, per_class=(60, 20)):
    return tuple({"label": np.repeat(np.arange(num_classes), n)} for n in per_class)


def label_sets(columns, rows):
    return [set(columns["label"][mine].tolist()) for mine in rows]


@pytest.mark.parametrize("assignment", ["deterministic", "first-deterministic", "random"])
def test_train_and_test_have_the_same_classes(modules, assignment):
    _, partition, settings = modules
    train, test = split_labels(per_class=(61, 23))
    train_rows, test_rows = partition.partition_rows(
        settings(class_assignment=assignment, seed=3), 20, train=train, test=test
    )
    assert label_sets(train, train_rows) == label_sets(test, test_rows)
    assert all(len(labels) == 2 for labels in label_sets(train, train_rows))


def test_deterministic_assignment_uses_each_class_equally_often(modules):
    _, partition, settings = modules
    train, test = split_labels()
    rows, _ = partition.partition_rows(settings(classes_per_client=3), 20, train=train, test=test)
    counts = np.bincount([label for labels in label_sets(train, rows) for label in labels])
    assert counts.tolist() == [6] * 10


@pytest.mark.parametrize("name", ["classes", "dirichlet", "iid", "natural"])
def test_every_image_has_one_owner(modules, name):
    _, partition, settings = modules
    train, test = split_labels()
    for columns in (train, test):
        columns["group"] = np.arange(len(columns["label"])) % 10
    for columns, rows in zip(
        (train, test),
        partition.partition_rows(settings(partition=name, partition_column="group"), 10, train=train, test=test),
        strict=True,
    ):
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(columns["label"])))


@pytest.mark.parametrize("name", ["classes", "dirichlet", "iid"])
def test_the_seed_fixes_the_partition(modules, name):
    _, partition, settings = modules
    train, test = split_labels()

    def rows(seed):
        # Ten clients use every class; with fewer there is a warning.
        found = partition.partition_rows(settings(partition=name, seed=seed), 10, train=train, test=test)
        return [mine.tolist() for split in found for mine in split]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_dirichlet_gives_everybody_enough_and_test_shares_like_train_shares(modules, alpha):
    _, partition, settings = modules
    train, test = split_labels(per_class=(300, 100))
    train_rows, test_rows = partition.partition_rows(
        settings(partition="dirichlet", alpha=alpha), 20, train=train, test=test
    )
    assert min(map(len, train_rows)) >= partition.LEAST_IMAGES
    assert min(map(len, test_rows)) >= 1
    assert all(
        few <= many for many, few in zip(label_sets(train, train_rows), label_sets(test, test_rows), strict=True)
    )
    for mine, tested in zip(train_rows, test_rows, strict=True):
        # Each class is rounded for itself.
        assert abs(len(tested) - len(mine) / 3) <= 10


def test_dirichlet_of_few_images_still_tests_every_client(modules):
    _, partition, settings = modules
    train, test = split_labels(per_class=(60, 6))
    _, rows = partition.partition_rows(settings(partition="dirichlet", alpha=0.3), 20, train=train, test=test)
    assert min(map(len, rows)) >= 1


def test_images_per_client_keeps_a_mixture(modules):
    _, partition, settings = modules
    train, test = split_labels()
    full, _ = partition.partition_rows(settings(), 10, train=train, test=test)
    few, few_test = partition.partition_rows(settings(images_per_client=10), 10, train=train, test=test)
    assert [len(rows) for rows in few + few_test] == [10] * 20
    bounds = settings(images_per_client=10, test_images_per_client=3)
    few, fewer_tests = partition.partition_rows(bounds, 10, train=train, test=test)
    assert [len(rows) for rows in few + fewer_tests] == [10] * 10 + [3] * 10
    assert all(part.tolist() == rows[:10].tolist() for part, rows in zip(few, full, strict=True))
    assert all(len(labels) == 2 for labels in label_sets(train, few))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"partition": "shards"},
            "partition: expected one of classes, .* natural; got 'shards'",
        ),
        ({"class_assignment": "fair"}, "class-assignment: .* got 'fair'"),
        ({"alpha": 0.0}, "alpha: expected a finite number above 0; got 0.0"),
        ({"alpha": float("nan")}, "alpha: .* got nan"),
        ({"classes_per_client": 0}, "classes-per-client: expected at least 1; got 0"),
        ({"images_per_client": -1}, "^images-per-client: .* got -1"),
        ({"test_images_per_client": -2}, "test-images-per-client: .* got -2"),
        ({"partition": "natural"}, "partition-column: .* got none"),
        ({"least_images": 0}, "least-images: expected at least 1; got 0"),
        ({"evaluate_on": "all"}, "evaluate-on: expected one of test, train, validation; got 'all'"),
    ],
)
def test_wrong_settings_are_named(modules, wrong, text):
    _, _, settings = modules
    with pytest.raises(ValueError, match=text):
        settings(**wrong)


@pytest.mark.parametrize(
    ("given", "num_clients", "text"),
    [
        ({"classes_per_client": 11}, 5, "classes-per-client: expected at most 10.* got 11"),
        ({"partition": "iid"}, 201, "clients: expected at most 200.* got 201"),
        ({"partition": "dirichlet", "alpha": 1e-3}, 20, "20 clients .*alpha 0.001"),
        ({}, 150, "'classes' of 'digits', test split, 150 clients"),
    ],
)
def test_impossible_partitions_say_what_to_change(modules, given, num_clients, text):
    _, partition, settings = modules
    train, test = split_labels()
    with pytest.raises(ValueError, match=text):
        partition.partition_rows(settings(**given), num_clients, train=train, test=test)


def test_a_client_without_images_is_named(modules):
    _, partition, settings = modules
    rows = [np.array([0, 1, 2]), np.array([], dtype=np.int64)]
    with pytest.raises(ValueError, match="client 1 of 2 has no train images with partition 'classes'"):
        partition._check_complete(settings(), {"train": rows, "test": rows}, np.zeros(3))


def test_natural_clients_must_be_in_both_splits(modules):
    _, partition, settings = modules
    train, test = split_labels()
    train["group"] = np.array(["a", "b", "c"])[np.arange(600) % 3]
    test["group"] = np.array(["a", "c"])[np.arange(200) % 2]
    natural = settings(partition="natural", partition_column="writer_id")
    with pytest.raises(ValueError, match=r"'writer_id'.*\['b'\] occur in one only"):
        partition.partition_rows(natural, 2, train=train, test=test)
    with pytest.raises(ValueError, match=r"expected at most 3.* got 4"):
        partition.partition_rows(natural, 4, train=train, test=train)


def test_writers_of_few_images_are_no_clients(modules):
    _, partition, settings = modules
    train, test = split_labels()
    train["group"] = np.array(["a", "b", "c"])[np.minimum(np.arange(600) // 5, 2)]  # 5, 5 and 590 images
    test["group"] = np.array(["a", "b", "c"])[np.arange(200) % 3]
    natural = settings(partition="natural", partition_column="writer_id", least_images=6)
    (train_rows,), (test_rows,) = partition.partition_rows(natural, 1, train=train, test=test)
    assert sorted(train_rows.tolist()) == list(range(10, 600))
    assert set(test["group"][test_rows]) == {"c"}
    with pytest.raises(ValueError, match=r"expected at most 1, the number of values of 'writer_id'; got 2"):
        partition.partition_rows(natural, 2, train=train, test=test)


def test_what_clients_are_tested_on(modules):
    data, _, settings = modules
    images, labels = data.train_images(settings(), 20, 3)
    own, own_labels = data.test_images(settings(evaluate_on="train"), 20, 3)
    assert torch.equal(own, images)
    assert torch.equal(own_labels, labels)
    rest, _ = data.train_images(settings(evaluate_on="validation"), 20, 3)
    held_out, _ = data.test_images(settings(evaluate_on="validation"), 20, 3)
    assert torch.equal(torch.cat([rest, held_out]), images)
    assert len(held_out) == round(len(images) / 5)


def test_unused_classes_are_named(modules):
    _, partition, settings = modules
    train, test = split_labels()
    with pytest.warns(UserWarning, match=r"no client holds the classes \[4, 5, 6, 7, 8, 9\]"):
        partition.partition_rows(settings(), 3, train=train, test=test)


def test_digits_are_normalised_images(modules):
    data, _, settings = modules
    images, labels = data.train_images(settings(), 20, 3)
    assert images.shape[1:] == (1, 8, 8)
    assert str(images.dtype) == "torch.float32"
    everybody = torch.cat([data.train_images(settings(), 20, client)[0] for client in range(20)])
    assert abs(everybody.mean()) < 0.01
    assert abs(everybody.std() - 1) < 0.01
    assert labels.unique().tolist() == [3, 4]
    _, tested = data.test_images(settings(), 20, 3)
    assert tested.unique().tolist() == [3, 4]
    assert len(data.all_test_images(settings())[1]) == 450  # a quarter of 1,797


def write_folder(folder, *, extra=(), splits=("train", "test")):
    """Write coloured images whose red value is their row, so that a test can tell them apart."""
    features = datasets.Features(
        {"img": datasets.Image(), "kind": datasets.ClassLabel(num_classes=2)}
        | {name: datasets.ClassLabel(num_classes=2) for name in extra}
    )
    for split in splits:
        rows = range(40)
        columns = {
            "img": [np.full((16, 16, 3), [row, 0, 255], dtype=np.uint8) for row in rows],
            "kind": [row % 2 for row in rows],
        } | {name: [0] * 40 for name in extra}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}.parquet")
    return str(folder)


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.mark.usefixtures("own_cache")
def test_local_folder(modules, tmp_path):
    data, _, settings = modules
    chosen = settings(dataset=write_folder(tmp_path), partition="classes", classes_per_client=1, images_per_client=5)
    for client in (0, 1):
        images, labels = data.train_images(chosen, 2, client)
        assert images.shape == (5, 3, 16, 16)
        # The red channel holds the row's number, 0 to 39.
        rows = (images[:, 0, 0, 0] * np.arange(40).std() + np.arange(40).mean()).round().int()
        assert (rows % 2).tolist() == labels.tolist() == [client] * 5
        assert (images[:, 2] == 0).all()  # all blue is the mean blue
    assert data.num_classes(chosen) == 2


@pytest.mark.usefixtures("own_cache")
def test_test_split_is_held_out_where_there_is_none(modules, tmp_path):
    data, _, settings = modules
    chosen = settings(dataset=write_folder(tmp_path, splits=["train"]), partition="iid")
    _, tested = data.all_test_images(chosen)
    trained = [data.train_images(chosen, 2, client)[1] for client in (0, 1)]
    assert sorted(tested.tolist()) == [0] * 5 + [1] * 5
    assert sum(map(len, trained)) == 30


@pytest.mark.usefixtures("own_cache")
def test_columns_are_found_or_named(modules, tmp_path):
    data, _, settings = modules
    folder = write_folder(tmp_path, extra=["coarse"])
    with pytest.raises(ValueError, match=r"label-column: expected one .* found \['kind', 'coarse'\]"):
        data.num_classes(settings(dataset=folder))
    with pytest.raises(ValueError, match="label-column: no column 'class'"):
        data.num_classes(settings(dataset=folder, label_column="class"))
    with pytest.raises(ValueError, match="label-column: expected 'img' to be ClassLabel"):
        data.num_classes(settings(dataset=folder, label_column="img"))
    with pytest.raises(ValueError, match="image-column: no column 'picture'"):
        data.num_classes(settings(dataset=folder, label_column="kind", image_column="picture"))
    with pytest.raises(ValueError, match="partition-column: no column 'writer'"):
        data.num_classes(settings(dataset=folder, label_column="kind", partition="natural", partition_column="writer"))
    assert data.num_classes(settings(dataset=folder, label_column="coarse")) == 2


@pytest.mark.usefixtures("own_cache")
def test_paper_data(modules, data_dir):
    data, _, settings = modules
    mnist = settings(dataset=str(data_dir / "mnist"), images_per_client=20, class_assignment="random")
    images, labels = data.train_images(mnist, 100, 99)
    _, tested = data.test_images(mnist, 100, 99)
    assert images.shape == (20, 1, 28, 28)
    assert set(labels.tolist()) == set(tested.tolist())
    femnist = settings(dataset=str(data_dir / "femnist"), partition="natural", partition_column="writer_id")
    assert data.num_classes(femnist) == 62
    assert len(data.train_images(femnist, 100, 0)[1]) == 120
