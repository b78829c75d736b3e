"""A user's rows as a domain: splits by content, labels from labelled rows, and refusals by file:line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.core.errors import DataError
from burnish.core.types import Split
from burnish.domains.base import assert_disjoint
from burnish.domains.files import FileDomain


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", "utf-8")
    return path


def rows(count: int, **more: object) -> list[dict[str, object]]:
    return [{"prompt": f"Say {i}.", "answer": str(i), **more} for i in range(count)]


def ids(domain: FileDomain, split: Split) -> set[str]:
    return {e.task.id for e in domain.generate(split, domain.limit(split), 0)}


def test_adding_rows_moves_none(tmp_path: Path) -> None:
    few = FileDomain(write(tmp_path / "a.jsonl", rows(60)), "exact")
    many = FileDomain(write(tmp_path / "a.jsonl", rows(300)), "exact")
    assert sum(few.limit(split) for split in Split) == 60
    for split in Split:
        assert ids(few, split) <= ids(many, split)


def test_clusters_are_not_cut(tmp_path: Path) -> None:
    table = [{**row, "cluster": f"c{i % 40}"} for i, row in enumerate(rows(400))]
    domain = FileDomain(write(tmp_path / "a.jsonl", table), "exact")
    sets = {str(s): domain.generate(s, domain.limit(s), 0) for s in Split}
    assert all(sets.values())
    assert_disjoint(sets)


def test_labels_come_from_rows_with_an_answer(tmp_path: Path) -> None:
    table = rows(50) + [{"prompt": f"Judge {i}.", "gold": str(i)} for i in range(150)]
    domain = FileDomain(write(tmp_path / "a.jsonl", table), "exact")
    labelled = domain.labelled(20, 3)
    assert len(labelled) == 20
    assert all(example.demonstration.text for example in labelled)
    assert any(not e.demonstration.parts for e in domain.generate(Split.TRAIN, domain.limit(Split.TRAIN), 3))
    with pytest.raises(DataError, match="labelled train"):
        domain.labelled(60, 3)


def test_a_row_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*rows(5), rows(5)[2]])
    with pytest.raises(DataError) as caught:
        FileDomain(path, "exact")
    assert f"{path}:6" in caught.value.where
    assert f"{path}:3" in caught.value.where


def test_asking_for_too_many_names_the_sizes(tmp_path: Path) -> None:
    domain = FileDomain(write(tmp_path / "a.jsonl", rows(40)), "exact")
    with pytest.raises(DataError, match=r"1000 gate tasks are asked for, the file gives \d+"):
        domain.generate(Split.GATE, 1000, 0)


def test_ids_do_not_depend_on_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    here = FileDomain(write(tmp_path / "a.jsonl", rows(40)), "v.py:right")
    there = FileDomain(write(tmp_path / "elsewhere" / "a.jsonl", rows(40)), "v.py:right")
    assert ids(here, Split.GATE) == ids(there, Split.GATE)


def test_case_and_white_space_do_not_carry_a_prompt_into_another_set(tmp_path: Path) -> None:
    plain = rows(60)
    shouted = [{**row, "prompt": str(row["prompt"]).upper().replace(" ", "  ")} for row in plain]
    domain = FileDomain(write(tmp_path / "a.jsonl", plain + shouted), "exact")
    for split in Split:
        said = [e.task.prompt[0].text for e in domain.generate(split, domain.limit(split), 0)]
        assert len(said) == 2 * len({" ".join(text.casefold().split()) for text in said})


def test_one_prompt_in_clusters_on_both_sides_is_refused(tmp_path: Path) -> None:
    table = [{"prompt": "Say hello.", "answer": "hello", "cluster": f"c{i}", "id": f"{i}"} for i in range(40)]
    with pytest.raises(DataError, match="the same task") as caught:
        FileDomain(write(tmp_path / "a.jsonl", table), "exact")
    assert "cluster" in caught.value.fix or "keep one" in caught.value.fix
