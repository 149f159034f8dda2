"""`TCPStore`: names and values that the ranks of a job share."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from unisono.errors import CommTimeout
from unisono.mindspore.mint import distributed as dist


def test_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.2))
    other = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=0.2))
    store.set("name", "value")
    assert other.get("name") == b"value"
    assert (other.add("number", 2), store.add("number", -5)) == (2, -3)
    assert (store.delete_key("name"), other.delete_key("name")) == (True, False)
    with pytest.raises(CommTimeout, match="name"):
        other.get("name")
    store.set("text", b"no number")
    with pytest.raises(RuntimeError, match="not a number"):
        store.add("text", 1)
    for wrong in (lambda: store.set(1, ""), lambda: store.set("", 1), lambda: store.add("", "1")):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="port"):
        dist.TCPStore("127.0.0.1", 70000)


def test_the_server_ends_with_its_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.2))
    store.set("text", "here")
    other = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=0.2))
    assert other.get("text") == b"here"
    del store
    with pytest.raises(RuntimeError, match=str(other.port)):
        other.get("text")


def test_a_master_warns_of_workers_that_are_late(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "unisono"):
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(seconds=0.2))
    assert [record.getMessage() for record in caplog.records] == [
        f"1 of 2 processes connected to the store at 127.0.0.1:{store.port} within 0.2 s; "
        "the others may still connect"
    ]
    store.set("name", "value")
    late = dist.TCPStore("127.0.0.1", store.port, 2, timeout=timedelta(seconds=0.2))
    assert late.get("name") == b"value"
