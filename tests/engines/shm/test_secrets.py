"""What a store that anybody can read contains of a job's secret."""

from __future__ import annotations

import contextlib
import secrets
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.jobs import Rank, Ranks
from tests.helpers.thorough import essential_rows
from unisono.launch.process import JobEnvironment

RENDEZVOUS = """
import torch.distributed as dist
from unisono.core import rendezvous
store = dist.FileStore({path!r}, 2)
launch = {{}}
def meet():
    launch[0] = rendezvous.exchange_hosts(store, rank, 2, "a test")
error = fault(meet)
say(secret=launch[0].secret.hex() if launch else None, job=launch[0].job if launch else "", **error)
hear()
"""


def rendezvous_results(path: Path, variables: list[dict[str, str]]) -> list[dict]:
    """Return what two ranks learn from a rendezvous via a store that anybody can read."""
    body = RENDEZVOUS.format(path=str(path))
    jobs = [JobEnvironment(2), JobEnvironment(2)]
    own = {"UNISONO_JOB": "one job", "UNISONO_SECRET": ""}
    with contextlib.ExitStack() as held:
        ranks: list[Rank] = []
        for rank in range(2):
            each = Ranks(2, body, only=[rank], job=jobs[rank], **{**own, **variables[rank]})
            ranks.append(held.enter_context(each)[rank])
        return [rank.read() for rank in ranks]


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
def test_a_given_secret_is_not_in_the_store(tmp_path: Path) -> None:
    given = secrets.token_hex(32)
    first, second = rendezvous_results(tmp_path / "store", [{"UNISONO_SECRET": given}] * 2)
    assert first["secret"] == second["secret"] and len(first["secret"]) == 64
    written = (tmp_path / "store").read_bytes()
    assert first["secret"].encode() not in written and given.encode() not in written
    assert first["job"].removeprefix("store-").encode() in written  # so this is the right file


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
def test_a_generated_secret_is_in_the_store(tmp_path: Path) -> None:
    """docs/security.md says so."""
    first, second = rendezvous_results(tmp_path / "store", [{}, {}])
    assert first["secret"] == second["secret"]
    assert first["secret"].encode() in (tmp_path / "store").read_bytes()


@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
@pytest.mark.parametrize(
    ("second", "text"),
    essential_rows(
        1,
        [
            ({"UNISONO_SECRET": "aa" * 32}, "differs from that of rank 0"),
            ({}, "rank 0 was started with UNISONO_SECRET, and this rank was not"),
        ],
    ),
    ids=["another secret", "none"],
)
def test_secrets_that_differ(tmp_path: Path, second: dict[str, str], text: str) -> None:
    given = {"UNISONO_SECRET": "bb" * 32}
    seen = rendezvous_results(tmp_path / "store", [given, second])
    assert seen[0]["kind"] is None
    assert seen[1]["kind"] == "LaunchError" and text in seen[1]["text"]
    assert "bb" * 32 not in seen[1]["text"] and "aa" * 32 not in seen[1]["text"]
