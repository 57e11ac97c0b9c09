"""`sdpakit cache`: nothing but its own files is counted or removed."""

import os

import pytest
from typer.testing import CliRunner

from sdpakit.backends.diskcache import DiskCache
from sdpakit.backends.gpu import cubincache
from sdpakit.backends.numba_cpu.objectcache import CACHE, OBJECT
from sdpakit.cli.app import app

KEY = "0123456789abcdef" * 4


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SDPAKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("SDPAKIT_CACHE", raising=False)
    return tmp_path / "cpu"


def sdpakit(*arguments):
    return CliRunner().invoke(app, ["cache", *arguments])


def test_an_empty_cache_is_shown_and_cleared(place):
    shown = sdpakit("info")
    assert shown.exit_code == 0
    assert f"directory  {place}" in shown.output
    assert "entries    0, 0.0 KiB" in shown.output
    assert "state      ready" in shown.output
    assert "removed 0 files" in sdpakit("clear").output
    assert not place.exists()


def test_entries_are_counted_and_removed_and_nothing_else(place):
    CACHE.write(KEY, bytes(3000), OBJECT)
    CACHE.write(KEY[::-1], bytes(2 << 20), OBJECT)
    others = [place / "notes.txt", place / f"{KEY}.o.bak", place / f"{KEY[:16]}.being_written"]
    for path in others:
        path.write_text("mine")
    abandoned = place / f"{KEY[:16]}.dead"
    abandoned.write_text("half")
    os.utime(abandoned, (1, 1))
    assert "entries    2, 2.0 MiB" in sdpakit("info").output
    cleared = sdpakit("clear")
    assert cleared.exit_code == 0
    assert "removed 3 files, 2.0 MiB" in cleared.output
    assert sorted(place.iterdir()) == sorted(others)
    assert CACHE.read(KEY, OBJECT) is None


def test_the_caches_of_all_backends_are_shown_and_cleared(place):
    kept = (CACHE, cubincache.CACHE)
    for cache in kept:
        cache.write(KEY, bytes(3000), cache.endings[0])
    shown = sdpakit("info").output
    assert shown.count("entries    1, 3.0 KiB") == 2
    assert all(f"directory  {cache.directory()}" in shown for cache in kept)
    assert sdpakit("clear").output.count("removed 1 files") == 2
    assert [cache.read(KEY, cache.endings[0]) for cache in kept] == [None, None]


def test_why_nothing_is_kept_is_said_once(place, monkeypatch):
    monkeypatch.setenv("SDPAKIT_CACHE", "0")
    assert sdpakit("info").output.count("nothing is kept") == 1


@pytest.mark.parametrize("action", ["info", "clear"])
def test_a_cache_that_is_switched_off_says_so(place, monkeypatch, action):
    CACHE.write(KEY, b"kept", OBJECT)
    monkeypatch.setenv("SDPAKIT_CACHE", "0")
    shown = sdpakit(action)
    assert shown.exit_code == 0
    assert "SDPAKIT_CACHE=0" in shown.output
    assert (place / f"{KEY}.o").exists()


@pytest.mark.parametrize("action", ["info", "clear"])
def test_without_a_home_the_remedy_is_named(monkeypatch, action):
    def no_home(cache):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(DiskCache, "directory", no_home)
    shown = sdpakit(action)
    assert shown.exit_code == 0
    assert "set SDPAKIT_CACHE_DIR" in shown.output


def test_a_file_in_its_place_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SDPAKIT_CACHE_DIR", str(tmp_path / "file"))
    assert "cannot be used" in sdpakit("info").output
    assert "removed 0 files" in sdpakit("clear").output


def test_a_read_only_cache_is_shown_as_one(place, monkeypatch):
    CACHE.write(KEY, b"kept", OBJECT)

    def refuse(dir):  # noqa: A002  # the name that tempfile has
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert "read-only" in sdpakit("info").output


def test_a_place_that_cannot_be_made_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("SDPAKIT_CACHE_DIR", str(tmp_path / "no" / "where"))

    def refuse(path, *_, **__):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    shown = sdpakit("info")
    assert "ready" not in shown.output
    assert "state      cannot be used" in shown.output
    assert "set SDPAKIT_CACHE_DIR to a directory that can be written" in shown.output


def test_looking_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("SDPAKIT_CACHE_DIR", str(tmp_path / "no" / "where"))
    assert "state      ready" in sdpakit("info").output
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_an_error(place, monkeypatch):
    CACHE.write(KEY, b"kept", OBJECT)

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    cleared = sdpakit("clear")
    assert cleared.exit_code == 1
    assert "could not be cleared" in cleared.output


def test_an_unknown_action_lists_the_known_ones():
    shown = sdpakit("drop")
    assert shown.exit_code == 2
    assert "info" in shown.output
    assert "clear" in shown.output
