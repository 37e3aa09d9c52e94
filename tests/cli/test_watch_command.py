"""What `headwise watch` refuses."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from saying import Headwise, assert_refused


def test_bad_folders_and_ports_are_refused(headwise: Headwise, here: Path) -> None:
    assert_refused(headwise("watch", "nowhere"), "folder is 'nowhere'", "no such folder")
    assert_refused(headwise("watch", ".", "--port", "http"), "port is 'http'", "whole number")
    assert_refused(headwise("watch", ".", "--port", "70000"), "port is 70000", "from 0 to 65,535")


def test_a_port_in_use_is_said(headwise: Headwise, here: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'headwise[watch]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(headwise("watch", ".", "--port", port), f"port is {port}", "try --port 0")


def test_without_its_stack_the_remedy_is_said(headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert_refused(headwise("watch", "."), "watch needs uvicorn", "pip install 'headwise[watch]'")
