"""Settings, logging levels and counters: what users set by environment variable, and what they can read."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphweave.core import counters as count
from graphweave.core import errors
from graphweave.core.errors import SettingsError
from graphweave.core.log import configure, logger, warn_once
from graphweave.core.settings import LOGGED, Settings, from_environment, log_levels, override, settings
from tests import fresh_process


def test_defaults_come_from_an_empty_environment() -> None:
    assert from_environment({}) == Settings()
    assert from_environment({"GRAPHWEAVE_CACHE_BYTES": " "}) == Settings()


def test_every_variable_is_read(tmp_path: Path) -> None:
    read = from_environment(
        {
            "GRAPHWEAVE_LOGS": "passes,+codegen",
            "GRAPHWEAVE_DUMP": str(tmp_path / "dump"),
            "GRAPHWEAVE_CACHE_DIR": str(tmp_path),
            "GRAPHWEAVE_CXX": "ccache g++",
            "CXX": "clang++",
            "GRAPHWEAVE_CACHE_BYTES": "512M",
            "GRAPHWEAVE_FORMAT_BYTES": "3 GiB",
            "GRAPHWEAVE_ARENA_BYTES": "0",
            "GRAPHWEAVE_SANITIZE": "address, undefined",
        }
    )
    assert read == Settings(
        logs="passes,+codegen",
        dump=tmp_path / "dump",
        cache_dir=tmp_path,
        cxx="ccache g++",
        cache_bytes=512 << 20,
        format_bytes=3 << 30,
        arena_bytes=0,
        sanitize=("address", "undefined"),
    )
    assert from_environment({"CXX": "clang++"}).cxx == "clang++"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHWEAVE_CACHE_BYTES", "lots"),
        ("GRAPHWEAVE_FORMAT_BYTES", "-1"),
        ("GRAPHWEAVE_ARENA_BYTES", "1.5G"),
        ("GRAPHWEAVE_SANITIZE", "address,memory-ish"),
        ("GRAPHWEAVE_CACHE_DIR", __file__),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        from_environment({name: value})


def test_override_lasts_for_its_block_even_when_it_raises() -> None:
    before = settings()
    with pytest.raises(RuntimeError), override(arena_bytes=7):
        assert settings().arena_bytes == 7
        raise RuntimeError
    assert settings() is before
    with pytest.raises(SettingsError, match="arena_bites"), override(arena_bites=7):
        pass


def test_log_levels() -> None:
    assert log_levels("") == {}
    assert log_levels("passes, +codegen,-runtime") == {
        "passes": logging.INFO,
        "codegen": logging.DEBUG,
        "runtime": logging.ERROR,
    }
    everything = log_levels("all,+lower")
    assert set(everything) == set(LOGGED)
    assert everything["lower"] == logging.DEBUG
    with pytest.raises(SettingsError, match=r"GRAPHWEAVE_LOGS.*'pases'"):
        log_levels("pases")


def test_configure_sets_rooms_and_leaves_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("graphweave")
    saved = (list(root.handlers), root.propagate)
    root.handlers.clear()
    try:
        configure("+codegen")
        logger("graphweave.codegen.cpp").debug("a detail")
        logger("graphweave.passes.cse").info("not asked for")
        err = capsys.readouterr().err
    finally:
        configure("")
        root.handlers[:], root.propagate = saved
    assert err == "[graphweave.codegen.cpp] a detail\n"


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("graphweave.test_settings")
    with caplog.at_level(logging.WARNING):
        warn_once("unique words of this test", log)
        warn_once("unique words of this test", log)
    assert [r.getMessage() for r in caplog.records] == ["unique words of this test"]


def test_counters_count_and_reset() -> None:
    before = count.counters()
    assert set(before) == set(count.COUNTERS)
    count.bump("graph_breaks")
    count.bump("graph_breaks", 2)
    assert count.counters()["graph_breaks"] == before["graph_breaks"] + 3
    assert before["graph_breaks"] != count.counters()["graph_breaks"]  # a copy, not a view
    count.reset_counters()
    assert not any(count.counters().values())
    with pytest.raises(KeyError):
        count.bump("graph_brakes")


def test_errors_are_also_what_python_programmers_catch() -> None:
    assert issubclass(errors.IndexRangeError, IndexError)
    assert issubclass(errors.DataError, ValueError)
    assert issubclass(errors.SettingsError, ValueError)
    assert issubclass(errors.ParseError, errors.IRError)
    subclasses = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert all(issubclass(e, errors.GraphweaveError) for e in subclasses)


@pytest.mark.parametrize(("switch", "lines"), [("", False), ("frontends", True)])
def test_logs_of_a_users_script_have_none_of_our_lines_unless_asked_for(switch: str, lines: bool) -> None:
    script = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import torch, graphweave\n"
        "from graphweave.core.log import logger\n"
        "logger('graphweave.frontends.dynamo.backend').info('one of our lines')\n"
        "logger('graphweave.runtime.x').warning('a warning of ours')\n"
        "logging.getLogger('train').info('the user\\'s own')\n"
    )
    done = fresh_process.run(script, {**os.environ, "GRAPHWEAVE_LOGS": switch})
    assert done.returncode == 0, done.stderr
    assert ("one of our lines" in done.stderr) is lines
    assert "a warning of ours" in done.stderr and "the user's own" in done.stderr


def test_the_level_that_a_user_gives_our_logger_stays() -> None:
    script = (
        "import logging; logging.basicConfig(); logging.getLogger('graphweave').setLevel(logging.INFO)\n"
        "from graphweave.core.log import logger\n"
        "logger('graphweave.frontends.x').info('one of our lines')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "one of our lines" in done.stderr
