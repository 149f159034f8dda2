"""Programs that get each of unisono's errors, as far as ranks that are threads can get them."""

import time

import ml_dtypes
import numpy as np

import unisono
import unisono.torch.distributed as dist


def argument_error(rank):
    try:
        dist.all_to_all_single(np.empty(6), np.ones(6))
    except unisono.ArgumentError as error:
        print(error)


def argument_type_error(rank):
    try:
        dist.all_reduce("three")
    except unisono.ArgumentTypeError as error:
        print(error)


def unsupported(rank):
    x = np.zeros(2, ml_dtypes.float8_e4m3fn)
    try:
        dist.all_reduce(x)
    except unisono.Unsupported as error:
        print(error)


def not_ready(rank):
    dist.destroy_process_group()
    try:
        dist.all_reduce(np.ones(3))
    except unisono.NotReady as error:
        print(error)


def mismatch_error(rank):
    x = np.ones(4)
    try:
        if rank == 2:
            dist.broadcast(x, src=0)
        else:
            dist.all_reduce(x)
    except unisono.MismatchError as error:
        print(error)


def peer_lost(rank):
    if rank == 2:
        return  # it ends without a call
    try:
        dist.all_reduce(np.ones(3))
    except unisono.PeerLost as error:
        print(error.ranks, error)


def comm_timeout(rank):
    # This job has UNISONO_TIMEOUT=1.
    if rank == 2:
        time.sleep(2)
        return
    try:
        dist.all_reduce(np.ones(3))
    except unisono.CommTimeout as error:
        print(error.ranks, error)
