"""Engine `cuda` on a GPU that is emulated: order, shared memory, faults, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import cuda_on_cpu, worlds
from tests.helpers.cuda_cases import (
    again,
    beside_shm,
    faults,
    memory,
    messages,
    order,
    several_gpus,
    wrong_calls,
)

if cuda_on_cpu.COMPILER is None:
    pytest.skip("no g++ to compile the kernels for the CPU", allow_module_level=True)


@pytest.fixture
def run(all_worlds: worlds.Worlds) -> Callable[..., list[Any]]:
    """`run(n, case, *args)` on n ranks of the emulated GPU, which go on afterwards."""

    def run(n: int, case: Callable[..., Any], *args: Any) -> list[Any]:
        return all_worlds.run(worlds.EMULATED, n, case, *args)

    return run


@pytest.fixture
def alone(all_worlds: worlds.Worlds) -> Callable[..., list[Any]]:
    """The same, on ranks for this test alone."""

    def run(n: int, case: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        return all_worlds.run(worlds.EMULATED, n, case, *args, of_its_own=True, **how)

    return run


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize(
    "case",
    [
        order.many_calls_without_a_pause,
        order.many_calls_at_once,
        order.calls_on_both_memories,
        order.streams_of_the_caller,
        order.streams_of_threads,
        order.waiting_twice_in_two_streams,
        order.copying_back_in_one_of_two_streams,
        order.awaiting_in_a_stream,
        order.the_host_does_not_wait,
        order.a_graph_is_captured_meanwhile,
        order.memory_is_kept,
        order.the_callers_gpu_is_as_before,
        again.calls_again,
        again.a_forked_child,
        memory.memory_that_cannot_be_shared,
        memory.uneven_calls_on_other_memory_of_one_rank,
        messages.message_to_itself,
        beside_shm.both_faces,
        beside_shm.calls_that_compute_on_the_host,
    ],
)
def test_calls(run, ranks, case):
    run(ranks, case)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        memory.pieces_of_a_block,
        memory.freed_blocks_are_closed,
        memory.many_blocks_freed_at_once,
        memory.long_messages_in_new_memory,
        memory.blocks_freed_before_a_mismatch,
        again.calls_again_on_other_memory,
        memory.nothing_is_left,
        messages.messages,
        messages.messages_in_any_order,
        messages.longer_messages,
    ],
)
def test_memory_and_messages(alone, case):
    alone(3, case)


def test_a_message_while_another_group_ends(alone):
    alone(2, messages.message_while_another_group_ends)


def test_an_exchange_on_one_queue(alone):
    alone(2, messages.an_exchange_on_one_queue)


def test_ranks_that_disagree_all_hear_of_it(run):
    for texts in run(3, wrong_calls.mismatches):
        assert all(text.startswith("MismatchError: ranks disagree") for text in texts), texts
        assert "float32 x 4" in texts[0] and "float32 x 6" in texts[0]
        assert "rank 0: all_reduce float64" in texts[1]
        assert "rank 0: broadcast float32 x 4 root 0" in texts[2]


def test_counts_that_do_not_match(run):
    for text in run(3, wrong_calls.counts_that_do_not_match):
        assert text.startswith("MismatchError: counts do not match in call"), text
        assert "rank 0 sends rank 2 1 elements, which expects 2" in text and "calls.py:" in text


def test_a_mismatch_while_a_call_waits(run):
    run(3, wrong_calls.a_mismatch_while_a_call_waits)


def test_a_call_that_differs_from_the_one_before(run):
    for text, calls in run(3, again.calls_again_that_differ):
        assert text.startswith("MismatchError: ranks disagree in call"), text
        assert f"call {int(calls) - 1} of the group" in text
        assert "ranks 0, 1: all_reduce float32 x 5 sum" in text and "calls.py:" in text


def test_a_call_that_is_made_again_has_the_timeout_of_its_group(alone):
    *waited, late = alone(3, again.calls_again_with_another_timeout)
    for text in waited:
        assert text.startswith("CommTimeout"), text
    assert late.startswith(("PeerLost", "CommTimeout")), late


@pytest.mark.thorough
def test_a_rank_that_dies_before_a_call_is_made_again(alone):
    for texts in alone(3, again.a_rank_dies_before_the_call_again, dying=[2]):
        for text in texts:
            assert text.startswith("PeerLost: rank 2 ") and "was killed by SIGKILL" in text, text


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("on_cpu", [[0], [1, 2]])
@pytest.mark.parametrize("in_world", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_calls_on_the_cpu_among_calls_on_the_gpu(run, in_world, on_cpu, blocking):
    ranks, others = ("rank 0:", "ranks 1, 2:")[:: 1 if on_cpu == [0] else -1]
    for texts in run(3, wrong_calls.cpu_against_gpu, in_world, on_cpu, blocking):
        for text, call in zip(texts, ["all_reduce float32 x 4 sum", "barrier"] * 3, strict=True):
            assert text.startswith("MismatchError: ranks disagree in call"), text
            assert f"{ranks} {call}, call" in text, text
            assert f"{others} all_reduce float32 x 4 sum on a GPU, call" in text, text


def test_a_barrier_among_calls_that_are_made_again(run):
    for text in run(3, wrong_calls.cpu_against_a_call_again):
        assert text.startswith("MismatchError: ranks disagree in call"), text
        assert "rank 1: barrier" in text and "ranks 0, 2: all_reduce float32 x 4 sum on" in text


def test_both_memories_in_one_call(run):
    for text in run(1, wrong_calls.two_memories):
        assert text == (
            "ArgumentError: src is on cuda and dst on cpu; one call needs them in one memory"
        )


def test_calls_in_a_graph_are_refused(run):
    for texts in run(3, wrong_calls.calls_in_a_graph):
        assert all(text.startswith("Unsupported: a CUDA graph is being") for text in texts), texts


def test_elements_at_odd_addresses_are_not_reduced(run):
    for text in run(2, wrong_calls.elements_at_odd_addresses):
        assert text.startswith("ArgumentError: elements of float32 at address"), text
        assert text.endswith("pass a copyno error"), text


def test_results_are_where_the_arrays_are(run):
    run(1, wrong_calls.results_are_where_the_arrays_are)


def test_two_gpus_in_one_call(run):
    for text in run(1, wrong_calls.two_gpus):
        assert text == (
            "ArgumentError: src is on GPU 0 and dst on GPU 1; one call needs them in one memory"
        )


def test_engine_shm_has_it_beside_itself(all_worlds):
    for names in all_worlds.run("shm", 3, beside_shm.chosen_by_itself, of_its_own=True):
        assert names == ["shm", "cuda"]


def test_an_order_for_each_memory(all_worlds):
    all_worlds.run("shm", 3, beside_shm.calls_of_two_threads, of_its_own=True)


@pytest.mark.thorough
def test_without_it_arrays_of_cupy_go_through_the_host(all_worlds):
    all_worlds.run("shm", 2, beside_shm.through_the_host, of_its_own=True)


def test_ranks_of_which_some_share_a_gpu_are_refused(alone):
    for first, second in alone(3, several_gpus.two_ranks_on_one_of_two_gpus):
        assert "the 3 ranks' tensors are on 2 GPUs" in first and first == second


# ---- a GPU for each rank: Gloo stands in for nccl, which needs real ones -------------------------


def test_ranks_with_a_gpu_each(all_worlds):
    all_worlds.run("shm", 3, several_gpus.own_gpus, of_its_own=True)


@pytest.mark.thorough
def test_ranks_with_a_gpu_each_that_disagree(alone):
    for text, after in alone(3, several_gpus.own_gpus_and_calls_that_differ):
        assert "ranks 0, 1: all_reduce float32 x 4 sum" in text and "rank 2:" in text
        assert after == "[3.0, 3.0, 3.0, 3.0]"


@pytest.mark.thorough
def test_a_rank_with_its_own_gpu_dies(alone):
    for texts in alone(3, several_gpus.own_gpus_and_a_rank_that_dies, dying=[2]):
        for text in texts:
            assert text.startswith("PeerLost: rank 2 ") and "was killed by SIGKILL" in text, text


@pytest.mark.thorough
def test_ranks_without_nccl(alone):
    texts = alone(3, several_gpus.nccl_on_some_ranks)
    for rank, (text, second) in enumerate(texts):
        assert "does not run on ranks [1]" in text and text == second
        assert text.endswith(": torch is not installed") == (rank == 1)


@pytest.mark.thorough
def test_the_store_of_nccl_is_closed(alone):
    assert alone(3, several_gpus.own_gpus_without_a_trace) == [[], [], []]


@pytest.mark.parametrize("blocking", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_rank_that_dies_does_not_hold_up_the_streams_of_others(alone, blocking):
    for texts in alone(3, faults.a_rank_is_killed, blocking, dying=[2]):
        assert texts
        for text in texts:
            assert text.startswith("PeerLost: rank 2 ") and "was killed by SIGKILL" in text, text


@pytest.mark.thorough
def test_a_rank_whose_stream_is_late(alone):
    outcomes = alone(3, faults.a_rank_is_late)
    for (text,) in outcomes[1:]:
        assert text.startswith(("CommTimeout: the GPU has not ended", "PeerLost: ranks")), text


def test_a_rank_whose_gpu_has_failed(alone):
    *others, last = alone(3, faults.the_gpu_fails_on_a_rank)
    for text in last:
        assert text.startswith("UnisonoError: an illegal memory access was encountered"), text
    for texts in others:
        assert all(text.startswith("PeerLost: ranks [") for text in texts), texts


@pytest.mark.parametrize(
    "error",
    [RuntimeError("too old"), pytest.param(KeyboardInterrupt(), marks=pytest.mark.thorough)],
)
def test_a_leader_that_fails_does_not_fall_behind_the_others(alone, error):
    leader, *others = alone(3, faults.the_leader_fails, error)
    assert leader[0] == f"{type(error).__name__}: {error}"
    assert leader[1] == f"UnisonoError: this rank has given the group up: {error!r}"
    for first, second in others:
        assert first == "no error"
        assert second.startswith("PeerLost: ranks [0"), second


def test_streams_of_calls_that_fail_are_used_again(run):
    run(3, faults.streams_of_calls_that_fail)


@pytest.mark.thorough
def test_survivors_shrink_and_go_on(alone):
    assert alone(3, faults.survivors_go_on, dying=[2]) == [[2.0], [2.0]]


@pytest.mark.thorough
def test_the_sender_of_a_message_dies(alone):
    (text,) = alone(2, messages.sender_is_killed, dying=[0])
    assert text.startswith("PeerLost: rank 0 ") and "was killed by SIGKILL" in text, text


@pytest.mark.thorough
def test_messages_that_do_not_fit(alone):
    sender, receiver = alone(2, messages.wrong_messages)
    assert sender[0].startswith("MismatchError: rank 1 expected another message"), sender
    assert receiver[0] == (
        "MismatchError: rank 0 sent float64 x 524288, but this rank receives float64 x 3"
    )
    assert receiver[1].startswith("MismatchError"), receiver
