"""MindSpore's `TCPStore` and ours: the same calls end in the same values and errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("mindspore")

from mindspore.mint.distributed import distributed as theirs

from unisono.mindspore.mint import distributed as ours

HOST = "127.0.0.1"
SHORT = timedelta(seconds=2)  # passes in some of the calls
LONG = timedelta(seconds=30)

NOT_MADE: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "no port": (TypeError, lambda store: store(HOST)),
    "no host": (TypeError, lambda store: store(None, 1)),
    "host is a number": (TypeError, lambda store: store(0, 1)),
    "port is text": (TypeError, lambda store: store(HOST, "1")),
    "size is text": (TypeError, lambda store: store(HOST, 1, "2")),
    "master is text": (TypeError, lambda store: store(HOST, 1, is_master="yes")),
    "timeout is a number": (TypeError, lambda store: store(HOST, 1, timeout=0)),
    "waiting is text": (TypeError, lambda store: store(HOST, 1, wait_for_workers="yes")),
    "a type before a value": (TypeError, lambda store: store(HOST, -1, "2")),
    "port below 0": (ValueError, lambda store: store(HOST, -1)),
    "port above 65535": (ValueError, lambda store: store(HOST, 65536)),
    "size of nobody": (ValueError, lambda store: store(HOST, 1, 0)),
    "size below 0": (ValueError, lambda store: store(HOST, 1, -1)),
    "no master": (RuntimeError, lambda store: store(HOST, 1, timeout=SHORT)),
}
NOT_DONE: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "set a number": (TypeError, lambda store: store.set("key", 1)),
    "set a list": (TypeError, lambda store: store.set("key", [1])),
    "set nothing": (TypeError, lambda store: store.set("key")),
    "set without a name": (TypeError, lambda store: store.set(2, "value")),
    "get without a name": (TypeError, lambda store: store.get(2)),
    "delete without a name": (TypeError, lambda store: store.delete_key(2)),
    "add without a name": (TypeError, lambda store: store.add(2, 1)),
    "add a fraction": (TypeError, lambda store: store.add("key", 1.5)),
    "add to text": (RuntimeError, lambda store: store.add("text", 1)),
    "get what nobody sets": (RuntimeError, lambda store: store.get("nothing")),
    "serve twice at a port": (
        RuntimeError,
        lambda store: type(store)(HOST, store.port, is_master=True, timeout=SHORT),
    ),
}
both = pytest.mark.parametrize("store", [theirs.TCPStore, ours.TCPStore], ids=["theirs", "ours"])


@both
@pytest.mark.parametrize("case", NOT_MADE)
def test_a_store_that_cannot_be(case: str, store: Any) -> None:
    error, make = NOT_MADE[case]
    with pytest.raises(error):
        make(store)


@both
def test_calls_and_values(store: Any, port: str) -> None:
    master = store(HOST, int(port), is_master=True, timeout=SHORT)
    client = store(HOST, int(port), timeout=LONG)
    # Upstream, a value may reach another late: the one that sets it asks for it first.
    master.set("text", "one")
    assert (master.get("text"), client.get("text")) == (b"one", b"one")
    client.set("text", b"two")
    assert (client.get("text"), master.get("text")) == (b"two", b"two")
    master.set("number", "3")
    assert (master.add("number", -3), client.add("number", -3)) == (0, -3)
    assert (client.add("new", 2), client.get("new")) == (2, b"2")
    assert (client.delete_key("new"), master.delete_key("new")) == (True, False)
    for error, call in NOT_DONE.values():
        with pytest.raises(error):
            call(master)


@both
def test_a_master_goes_on_without_workers(store: Any, port: str) -> None:
    master = store(HOST, int(port), 2, is_master=True, timeout=SHORT)
    master.set("text", "value")
    late = store(HOST, int(port), 2, timeout=LONG)
    assert late.get("text") == b"value"
