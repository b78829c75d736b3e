from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.core.errors import ResourceError
from burnish.observe.disk import atomic_write, folder_bytes, format_bytes, free_bytes, require_free


@pytest.fixture
def read_only_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that really cannot be written: root ignores mode bits, so root gets a read-only mount."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        yield folder
        folder.chmod(stat.S_IRWXU)
        return
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", folder], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("root here may not mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic_write(path, b"old" * 1000)
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state.json"]


def test_new_files_have_ordinary_permissions(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ResourceError) as caught:
        atomic_write(tmp_path / "taken" / "state.json", b"")
    assert str(tmp_path / "taken" / "state.json") in caught.value.where
    assert "part of this path is a file" in caught.value.fix
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_folder_in_place_of_a_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    (tmp_path / "state.json" / "inside").write_text("kept")
    with pytest.raises(ResourceError):
        atomic_write(tmp_path / "state.json", b"")
    assert sorted(os.listdir(tmp_path)) == ["state.json"]
    assert (tmp_path / "state.json" / "inside").read_text() == "kept"


def test_a_read_only_folder_is_refused_with_its_path(read_only_folder: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        atomic_write(read_only_folder / "x", b"data")
    assert caught.value.where == str(read_only_folder / "x")
    assert "choose" in caught.value.fix


def test_too_little_disk_says_how_much_is_missing(tmp_path: Path) -> None:
    require_free(tmp_path / "not" / "there" / "yet", 1, purpose="a byte")
    with pytest.raises(ResourceError, match="three checkpoints needs") as caught:
        require_free(tmp_path, free_bytes(tmp_path) + 2**40, purpose="three checkpoints")
    assert caught.value.exit_code == 2
    assert "free 1" in caught.value.fix


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB")]
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_a_folder_weighs_its_files_and_not_what_links_point_to(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 5000)
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_bytes(b"x" * 10)
    (folder / "link").symlink_to(tmp_path / "big")
    assert 10 < folder_bytes(folder) < 5000
