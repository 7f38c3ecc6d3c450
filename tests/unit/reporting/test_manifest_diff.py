"""Two manifests side by side: what differs, what only names them, what one of them is too old to say."""

import json
from pathlib import Path
from typing import Any

from atlas_rl.records.json_text import from_json, to_json
from atlas_rl.reporting.machine import Card, Machine
from atlas_rl.reporting.manifest import DataFile, GitState, Manifest, PotentialBinding, build_manifest, read_manifest
from atlas_rl.reporting.manifest_diff import Comparison, compare

CONFIG: dict[str, Any] = {
    "atlas": {"run": {"id": "a", "resume": False, "seed": 0}},
    "trainer": {"experiment_name": "a", "default_local_dir": "x/a/checkpoints", "lr": 1.0, "names": ["x"]},
}
CARD = Card(index=0, name="H200", memory_mib=143771, driver="570")
HOST = Machine(hostname="one", cpu="x86_64", num_cpus=8, num_usable_cpus=8, memory_mib=1000, cards=(CARD,))
GIT = GitState(commit="c" * 40, dirty=False, changes_sha256=None)


def manifest(**changes: Any) -> Manifest:
    built = build_manifest(
        "a",
        CONFIG,
        potential=PotentialBinding(name="zero", sha256="0" * 64),
        grammar_hashes={"urn/open": "b" * 64},
        protocol_token_ids={"stop": [2, 3]},
        data_files={"train.parquet": DataFile(sha256="d" * 64, num_rows=5)},
        model_fingerprints={"critic.model.path": "e" * 64},
    )
    changed = built.model_copy(update={"machine": HOST, "environment": {"NCCL_DEBUG": "x"}, "git": GIT, **changes})
    return from_json(Manifest, to_json(changed))


def config(**trainer: Any) -> dict[str, Any]:
    return CONFIG | {"trainer": CONFIG["trainer"] | trainer}


def keys(found: Comparison) -> list[str]:
    return [one.key for one in found.differences]


def test_a_manifest_equals_itself_and_what_was_read_back(tmp_path: Path) -> None:
    one = manifest()
    (tmp_path / "run.json").write_bytes(to_json(one))
    for other in (one, read_manifest(tmp_path / "run.json")):
        found = compare(one, other)
        assert found.is_equal
        assert (found.differences, found.identity, dict(found.unrecorded)) == ((), (), {})


def test_names_places_and_times_are_told_apart_from_differences() -> None:
    other = manifest(
        run_id="b",
        attempt_id=2,
        created_at="later",
        started_at="before",
        command=("x",),
        working_directory="/y",
        machine=HOST.model_copy(update={"hostname": "two"}),
        config={
            "atlas": {"run": {"id": "b", "resume": True, "seed": 0}},
            "trainer": CONFIG["trainer"] | {"experiment_name": "b", "default_local_dir": "x/b/checkpoints"},
        },
    )
    found = compare(manifest(), other)
    assert found.is_equal
    assert [one.key for one in found.identity] == [
        "run_id", "attempt_id", "created_at", "started_at", "command", "working_directory", "machine.hostname",
        "config.atlas.run.id", "config.atlas.run.resume", "config.trainer.experiment_name",
        "config.trainer.default_local_dir",
    ]  # fmt: skip


def test_every_leaf_that_differs_is_found_in_the_order_of_groups_and_keys() -> None:
    other = manifest(
        config=config(lr=2.0, names=["y"], extra={"deep": None}),
        git=GitState(commit="f" * 40, dirty=False),
        packages={**manifest().packages, "torch": "3"},
        model_fingerprints={"critic.model.path": "1" * 64},
        data_files={"other.parquet": DataFile(sha256="d" * 64, num_rows=6)},
        potential=PotentialBinding(name="one", sha256="0" * 64),
        grammar_hashes={"urn/open": "2" * 64},
        protocol_token_ids={"stop": [2]},
        machine=HOST.model_copy(update={"cards": (CARD, CARD)}),
        environment={"NCCL_DEBUG": "y"},
    )
    found = compare(manifest(), other)
    assert {group: [one.key for one in members] for group, members in found.by_group().items()} == {
        "config": ["config.trainer.extra.deep", "config.trainer.lr", "config.trainer.names"],
        "git": ["git.commit"],
        "versions": ["packages.torch"],
        "models": ["model_fingerprints.critic.model.path"],
        "data": [
            "data_files.other.parquet.num_rows", "data_files.other.parquet.sha256",
            "data_files.train.parquet.num_rows", "data_files.train.parquet.sha256",
        ],
        "potential": ["potential.name"],
        "grammar": ["grammar_hashes.urn/open"],
        "protocol tokens": ["protocol_token_ids.stop"],
        "machine": ["machine.cards"],
        "environment": ["environment.NCCL_DEBUG"],
    }  # fmt: skip
    values = {one.key: dict(one.values) for one in found.differences}
    assert values["config.trainer.lr"] == {"a": 1.0, "b": 2.0}
    assert values["config.trainer.extra.deep"] == {"b": None}
    assert values["data_files.train.parquet.num_rows"] == {"a": 5}
    assert not found.is_equal
    assert json.loads(json.dumps(found.plain()))["differences"]["git"] == [
        {"key": "git.commit", "a": "c" * 40, "b": "f" * 40}
    ]


def test_an_empty_mapping_is_told_by_what_the_other_side_has_in_it() -> None:
    assert keys(compare(manifest(), manifest(environment={}))) == ["environment.NCCL_DEBUG"]
    assert keys(compare(manifest(config=config(x={})), manifest())) == ["config.trainer.x"]


def test_numbers_are_equal_only_if_they_are_written_alike() -> None:
    assert keys(compare(manifest(), manifest(config=config(lr=1)))) == ["config.trainer.lr"]
    assert keys(compare(manifest(), manifest(config=config(lr=True)))) == ["config.trainer.lr"]


def test_an_ignored_key_covers_what_is_below_it_and_needs_no_word_for_the_configuration() -> None:
    other = manifest(config=config(lr=2.0, names=["y"]), environment={})
    assert keys(compare(manifest(), other, ["trainer.lr"])) == ["config.trainer.names", "environment.NCCL_DEBUG"]
    assert keys(compare(manifest(), other, ["config.trainer"])) == ["environment.NCCL_DEBUG"]
    assert compare(manifest(), other, ["trainer", "environment"]).is_equal
    assert keys(compare(manifest(), other, ["train", "environment.NCCL"])) == keys(compare(manifest(), other))


def test_what_an_older_manifest_does_not_say_is_named_and_not_compared(tmp_path: Path) -> None:
    old = json.loads(to_json(manifest()))
    for name in ("machine", "environment", "command"):
        del old[name]
    del old["git"]["changes_sha256"], old["packages"]["triton"]
    (tmp_path / "run.json").write_text(json.dumps(old))
    read = read_manifest(tmp_path / "run.json")
    found = compare(manifest(), read)
    assert found.is_equal
    assert dict(found.unrecorded) == {
        "machine": "b", "environment": "b", "command": "b", "git.changes_sha256": "b", "packages.triton": "b"
    }  # fmt: skip
    assert set(compare(read, manifest()).unrecorded.values()) == {"a"}


def test_code_outside_a_checkout_differs_from_a_commit() -> None:
    assert keys(compare(manifest(), manifest(git=None))) == ["git", "git.changes_sha256", "git.commit", "git.dirty"]
