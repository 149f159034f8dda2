"""A program for one rank: NumPy's own allocator in `unisono.shared_arrays`, in any NumPy."""

from __future__ import annotations

__all__ = ["NUMPY"]

NUMPY = """
import asyncio, unisono
try:
    from numpy._core.multiarray import get_handler_name
except ImportError:
    from numpy.core.multiarray import get_handler_name
world = groups.init("shm", 60)
def is_shared(array):
    return get_handler_name(array) == "unisono"

outside = np.zeros(1 << 16)
with unisono.shared_arrays():
    small, large = np.zeros(100), np.ones(1 << 16)
    product = large * 3 + outside
    with unisono.shared_arrays(minimum=1 << 30):
        inner = np.zeros(1 << 16)
    again = np.zeros(1 << 16)
    other = []
    thread = threading.Thread(target=lambda: other.append(np.zeros(1 << 16)))
    thread.start()
    thread.join()
after = np.zeros(1 << 16)
assert is_shared(large) and is_shared(product) and is_shared(again)
def has_segment(array):
    for line in open("/proc/self/maps"):
        first, last = (int(bound, 16) for bound in line.split()[0].split("-"))
        if first <= array.ctypes.data < last:
            return "memfd:unisono" in line
assert all(map(has_segment, (large, product, again)))
assert not any(map(has_segment, (small, inner, outside, after)))
assert not is_shared(outside) and not is_shared(after) and not is_shared(other[0])
assert (product == 3).all()

# A freed block is used again, and calloc clears it.
del large, product, again
with unisono.shared_arrays(0):
    for _ in range(5):
        full = np.full(1 << 16, 5.0)
        del full
        zeros = np.zeros(1 << 16)
        assert is_shared(zeros) and not zeros.any()
        del zeros
    # realloc: longer, shorter, and from nothing.
    grown = np.arange(1000.0)
    grown.resize(1_000_000, refcheck=False)
    assert (grown[:1000] == np.arange(1000)).all() and not grown[1000:].any()
    grown.resize(10, refcheck=False)
    assert grown.tolist() == list(range(10))
    listed = np.fromiter((i for i in range(50_000)), np.int64)
    assert (listed == np.arange(50_000)).all()
with unisono.shared_arrays():
    tiny = np.zeros(10)
tiny.resize(1 << 17, refcheck=False)
assert not tiny.any()

# Each task has its own context.
async def make(shared):
    if not shared:
        await asyncio.sleep(0.01)
        return np.zeros(1 << 16)
    with unisono.shared_arrays():
        await asyncio.sleep(0.02)
        return np.zeros(1 << 16)
async def both():
    return await asyncio.gather(make(True), make(False))
assert [is_shared(array) for array in asyncio.run(both())] == [True, False]

# Many threads at once.
def churn(seed):
    generator = np.random.default_rng(seed)
    with unisono.shared_arrays(0):
        mine = {}
        for i in range(300):
            count = int(generator.integers(1, 200_000))
            array = np.full(count, seed * 1000 + i)
            mine[i] = array
            if i >= 5:
                old = mine.pop(int(generator.choice(list(mine)[:-1])))
                assert (old == old[0]).all()
        for i, array in mine.items():
            assert (array == seed * 1000 + i).all()
    done.append(seed)
done = []
threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == [0, 1, 2, 3]

# The world may end within the context: arrays are ordinary from then on.
with unisono.shared_arrays(0):
    groups.close()
    assert np.zeros(1 << 16).sum() == 0
say(done=np.__version__)
"""
