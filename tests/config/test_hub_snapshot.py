from asyncrl.config.model.directory import HubSnapshot, snapshot_of


def test_a_path_in_the_cache_tells_name_commit_and_file() -> None:
    assert snapshot_of("/cache/models--org--a--b/snapshots/0123abc/") == HubSnapshot("org/a--b", "0123abc", "")
    assert snapshot_of("/cache/datasets--org--sums/snapshots/0123abc/data/train.parquet") == HubSnapshot(
        "org/sums", "0123abc", "data/train.parquet"
    )


def test_any_other_path_is_none() -> None:
    assert snapshot_of("/models/org--name") is None
    assert snapshot_of("/cache/models--org--name/refs/main") is None
