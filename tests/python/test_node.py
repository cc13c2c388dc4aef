"""Communicators of processes."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from typing import Any

import numpy as np
import pytest
from ranks import held, on_processes

import reshard
from reshard import _core

WHOLE = np.arange(9 * 14, dtype="f8").reshape(9, 14)


def move(rank: int, n: int, gather: Any) -> None:
    with reshard.node(n, rank, gather, timeout=60) as comm:
        assert (comm.rank, comm.size, comm.local) == (rank, n, False)
        for text in ("chunk(1)", "mesh(2x2;S1,S0)", "cyclic(2x2;2x3)", "rank(2)"):
            src, dst = reshard.Layout("chunk(0)", WHOLE.shape, n), reshard.Layout(text, WHOLE.shape, n)
            mine = held(src, rank, WHOLE)
            for _ in range(2):
                got = reshard.redistribute(mine, src, dst, comm)
                want = held(dst, rank, WHOLE)
                assert (got is None) if want is None else (got == want).all(), text
            out = np.zeros_like(want) if want is not None else None
            with reshard.Transfer(reshard.Plan(src, dst, "f64", rank), comm, mine, out) as t:
                t.execute()
                assert out is None or (out == want).all()
            if want is not None:  # the result of one call is read directly in the next
                back = reshard.redistribute(got, dst, src, comm)
            else:
                back = reshard.redistribute(np.zeros((0, 14)), dst, src, comm)
            assert (back == mine).all()
        sub = comm.split(rank % 2)
        assert (sub.rank, sub.size) == (rank // 2, (n + 1 - rank % 2) // 2)
        sub.close()
        comm.barrier()


def test_four_processes_move_tensors() -> None:
    on_processes(4, move)


def disagree(rank: int, n: int, gather: Any) -> str:
    comm = reshard.node(n, rank, gather, timeout=60)
    src = reshard.Layout("chunk(0)", (4, 4), n)
    dst = reshard.Layout("chunk(1)" if rank == 0 else "chunk(0)", (4, 4), n)
    with pytest.raises(reshard.MismatchError) as raised:
        reshard.Transfer(reshard.Plan(src, dst, "f32", rank), comm, np.zeros((2, 4), "f4"), np.zeros((4, 2) if rank == 0 else (2, 4), "f4"))
    comm.close()
    return str(raised.value)


def test_ranks_that_disagree_get_one_error() -> None:
    said = on_processes(2, disagree)
    assert said[0] == said[1] and "chunk" in said[0]


REFUSED: dict[str, Any] = {  # by call: what rank 1 gives, and what its error says
    "Transfer": (np.zeros((2, 5), "f4"), r"shape \(2, 5\), where \(2, 4\)"),
    "rebind": (np.zeros((2, 4), "f8"), "f64, where f32"),
    "redistribute": (np.zeros((2, 4), ">f4"), "big-endian"),
    "second": ([1, 2], "2 arrays"),
    "layouts": (np.zeros((2, 4), "f4"), "1 source layouts and 2 destination"),
    "save": (np.zeros((2, 5), "f4"), r"shape \(2, 5\)"),
}


def refuse(rank: int, n: int, gather: Any, where: str) -> None:
    with reshard.node(n, rank, gather, timeout=60) as comm, tempfile.TemporaryDirectory() as scratch:
        src, dst = (reshard.Layout(text, (4, 4), n) for text in ("chunk(0)", "chunk(1)"))
        good, plan, out = np.zeros((2, 4), "f4"), reshard.Plan(src, dst, "f32", rank), np.full((4, 2), 7, "f4")
        shared = reshard.empty((2, 4), "f32", comm)
        shared[...] = 0
        transfer = reshard.Transfer(plan, comm, shared, out, path="direct")
        if where == "second":
            reshard.redistribute(good, src, dst, comm)
        given, text = REFUSED[where] if rank == 1 else (shared, "rank 1: .*" + REFUSED[where][1])
        to = [dst, dst] if where == "layouts" and rank == 1 else [dst]
        calls: dict[str, Any] = {
            "Transfer": lambda: reshard.Transfer(plan, comm, given, out), "rebind": lambda: transfer.rebind(given, out),
            "redistribute": lambda: reshard.redistribute([given], [src], [dst], comm), "layouts": lambda: reshard.redistribute([given], [src], to, comm),
            "save": lambda: _core._move_state(comm, scratch, ["w"], [given], [src], True, True)}
        with pytest.raises(reshard.Error, match=text):
            calls.get(where, calls["redistribute"])()
        assert (out == 7).all() and not os.listdir(scratch)
        transfer.execute()  # the communicator goes on
        assert (reshard.redistribute(good, src, dst, comm) == out).all()


@pytest.mark.parametrize("where", REFUSED)
def test_what_one_rank_refuses_all_ranks_hear(where: str) -> None:
    on_processes(2, refuse, where)


def short(rank: int, n: int, gather: Any) -> None:
    with pytest.raises(reshard.InvalidError, match="3 bytes, not 2 x"):
        reshard.node(n, rank, lambda mine: b"abc")

    def raising(mine: bytes) -> bytes:
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        reshard.node(n, rank, raising)


def test_an_all_gather_that_fails_comes_out_as_itself() -> None:
    on_processes(2, short)


def lose(rank: int, n: int, gather: Any) -> Any:
    comm = reshard.node(n, rank, gather, timeout=60)
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), 9)
    with pytest.raises(reshard.PeerError, match="rank 1"):
        comm.barrier()
    with comm.shrink() as left:  # those that are left go on
        assert left.size == 2 and left.rank == rank // 2
        rows, columns = (reshard.Layout(text, WHOLE.shape, 2) for text in ("chunk(0)", "chunk(1)"))
        assert (reshard.redistribute(held(rows, left.rank, WHOLE), rows, columns, left) == held(columns, left.rank, WHOLE)).all()
    comm.close()


def fork(rank: int, n: int, gather: Any) -> None:
    with reshard.node(n, rank, gather, timeout=60) as comm:
        child = os.fork()
        if child == 0:
            try:
                comm.barrier()
            except reshard.PeerError as error:
                os._exit(0 if "the process that was forked, not this one" in str(error) else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        comm.barrier()


def test_a_forked_process_is_no_rank_of_its_parents_node() -> None:
    on_processes(2, fork)


def test_a_lost_process_is_named() -> None:
    with pytest.raises(AssertionError, match="rank 1 ended without a word"):
        on_processes(3, lose)


def outlast(rank: int, n: int, gather: Any) -> None:
    comm = reshard.node(n, rank, gather, timeout=60)
    if rank == 1:
        gather(b"over")
        comm.close()
        return
    said: list[BaseException] = []

    def wait() -> None:
        try:
            comm.barrier()
        except reshard.Error as error:
            said.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while "in reshard_comm_barrier" not in comm.report():  # this thread runs while that one waits
        pass
    comm.close()
    waiting.join()
    assert isinstance(said[0], reshard.PeerError) and comm.closed
    gather(b"over")


def test_close_in_another_thread_ends_a_wait() -> None:
    on_processes(2, outlast)


def interrupt(rank: int, n: int, gather: Any, call: str) -> None:
    comm = reshard.node(n, rank, gather, timeout=60)
    src, dst = (reshard.Layout(text, (4, 4), n) for text in ("chunk(0)", "chunk(1)"))
    mine, plan, out = np.zeros((2, 4), "f4"), reshard.Plan(src, dst, "f32", rank), np.zeros((4, 2), "f4")
    transfer = reshard.Transfer(plan, comm, mine, out)
    calls: dict[str, Any] = {"barrier": comm.barrier, "split": lambda: comm.split(0), "Transfer": lambda: reshard.Transfer(plan, comm, mine, out),
                             "execute": transfer.execute, "redistribute": lambda: reshard.redistribute(mine, src, dst, comm)}
    if rank == 1:
        gather(b"interrupted")
        with pytest.raises(reshard.PeerError, match="rank 0 aborted"):
            calls[call]()
        comm.close()
        return

    def send() -> None:
        while "\nrank 0: in " not in comm.report() or ", since " not in comm.report():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    def count(*unused: object) -> None:  # a handler that returns: the wait goes on
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=send).start()

    signal.signal(signal.SIGINT, count)
    threading.Thread(target=send).start()
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    with pytest.raises(reshard.PeerError):
        comm.barrier()
    gather(b"interrupted")
    comm.close()


@pytest.mark.parametrize("call", ["barrier", "split", "Transfer", "execute", "redistribute"])
def test_an_interrupt_ends_a_wait_of_the_main_thread(call: str) -> None:
    on_processes(2, interrupt, call)


def late(rank: int, n: int, gather: Any) -> None:
    comm = reshard.node(n, rank, gather, timeout=0.5)
    if rank == 0:
        with pytest.raises(TimeoutError) as raised:
            comm.barrier()
        assert raised.value.missing == (1,)  # type: ignore[attr-defined]
    gather(b"met")
    comm.close()


def test_a_deadline_tells_who_did_not_come() -> None:
    on_processes(2, late)


def test_node_without_a_launcher_is_one_process() -> None:
    with reshard.node() as comm:
        assert comm.size == 1
