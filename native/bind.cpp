// native/bind.cpp: the only file that knows Python. Converts arguments, releases the GIL, calls one
// function, and turns Failure into the classes of unisono.errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>

#include "kernels.hpp"
#include "mailbox.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace unisono {
namespace {

/// Whether a signal handler has raised: Ctrl-C during a wait. Runs without the GIL held.
bool interrupted() {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

/// How often this process was forked off. Relaxed: the fork itself orders it, and a child begins with
/// one thread.
std::atomic<std::uint32_t> forks{0};

/// When something was made. A forked child has a copy of everything but belongs to no job: it must
/// neither speak for its parent nor wait for threads that only the parent has.
struct Birth {
    std::uint32_t generation = forks.load(std::memory_order_relaxed);
    bool foreign() const noexcept { return generation != forks.load(std::memory_order_relaxed); }
};

[[noreturn]] void raise(const Failure& failure) {
    if (failure.fault == Fault::interrupted && PyErr_Occurred() != nullptr) throw nb::python_error();
    const char* name = "UnisonoError";
    switch (failure.fault) {
        case Fault::mismatch: name = "MismatchError"; break;
        case Fault::lost: name = "PeerLost"; break;
        case Fault::timeout: name = "CommTimeout"; break;
        case Fault::memory: name = "OutOfSharedMemory"; break;
        case Fault::closed: name = "NotReady"; break;
        case Fault::system: name = "LaunchError"; break;
        case Fault::interrupted: break;
    }
    const nb::object type = nb::module_::import_("unisono.errors").attr(name);
    const nb::object error = type(failure.text, failure.ranks);
    PyErr_SetObject(type.ptr(), error.ptr());
    throw nb::python_error();
}

/// Runs `body` without the GIL and raises what it throws.
template <class Body> auto guarded(Body body) {
    std::optional<Failure> caught;
    {
        const nb::gil_scoped_release release;
        try {
            return body();
        } catch (const Failure& failure) {
            caught = failure;
        }
    }
    raise(*caught);
}

void check_place(const Birth& birth) {
    if (birth.foreign())
        raise({Fault::closed, "this process was forked after init and has no place in the world; start "
                              "ranks with `unisono run` or unisono.spawn instead"});
}

/// A call under way, for Python to wait for.
struct Pending {
    std::shared_ptr<Completion> completion;
    std::shared_ptr<Letter> letter;
    Birth birth = {};

    bool wait(double seconds) {
        check_place(birth);
        return guarded([&] { return completion->wait({seconds, interrupted}); });
    }
    void check() const {
        if (const Failure* failure = completion->failure()) raise(*failure);
    }
};

/// One rank's hold on a job: its memory, its messages.
struct Job {
    Job(int fd, int rank) : arena(std::make_shared<Arena>(fd)), rank(rank) {
        arena->enter(rank);
    }
    ~Job() {
        if (birth.foreign()) static_cast<void>(mailbox.release());
    }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    std::shared_ptr<Arena> arena;
    std::unique_ptr<Mailbox> mailbox;
    int rank;
    Birth birth;

    void meet() {
        arena->meet(rank);
        mailbox = std::make_unique<Mailbox>(arena, rank);
    }
};

/// One rank's hold on a group: what engines/shm.py calls.
class Communicator {
public:
    Communicator(std::shared_ptr<Job> job, std::size_t offset, int rank, int size)
        : job_(std::move(job)),
          worker_(std::make_unique<Worker>(
              std::make_unique<Group>(job_->arena, offset, rank, size))) {
    }
    ~Communicator() {
        if (birth_.foreign()) static_cast<void>(worker_.release());
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    /// Runs or starts a collective; None if it has ended.
    std::optional<Pending> collective(int verb, std::uintptr_t source, std::uintptr_t target,
                                      std::uint64_t count, int dtype, std::uint32_t item, int op,
                                      double factor, int root, double seconds, bool blocking) {
        return launch(request(verb, source, target, count, dtype, item, op, factor, root), seconds,
                      blocking);
    }

    std::optional<Pending> collective_uneven(int verb, std::uintptr_t source, std::uintptr_t target,
                                             std::uint64_t count, int dtype, std::uint32_t item,
                                             int op, double factor, int root, double seconds,
                                             bool blocking, std::vector<std::uint64_t> sends,
                                             std::vector<std::uint64_t> receives) {
        Request made = request(verb, source, target, count, dtype, item, op, factor, root);
        made.sends = std::move(sends);
        made.receives = std::move(receives);
        return launch(std::move(made), seconds, blocking);
    }

    /// Sends or receives; with `blocking` the letter has come to its end.
    Pending message(bool sending, std::uintptr_t data, std::uint64_t count, int dtype,
                    std::uint32_t item, int peer, std::int64_t tag, double seconds, bool blocking) {
        check_place(birth_);
        auto letter = make_letter(worker_->group().number(), sending, peer, tag,
                                  reinterpret_cast<std::byte*>(data), count * item);
        letter->dtype_code = static_cast<std::uint8_t>(dtype);
        letter->item = item;
        guarded([&] {
            job_->mailbox->post(letter, seconds);
            if (blocking) job_->mailbox->wait(letter, {seconds, interrupted});
            else if (!letter->completion.done()) job_->mailbox->serve_in_background();
        });
        return {std::shared_ptr<Completion>(letter, &letter->completion), letter};
    }

    /// Makes the group of these ranks of ours; its first rank makes it and tells the others where.
    std::unique_ptr<Communicator> split(const std::vector<int>& ranks, std::int64_t key,
                                        double seconds) {
        check_place(birth_);
        std::vector<int> world;
        int place = -1;
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            world.push_back(worker_->group().world_rank(ranks[i]));
            if (ranks[i] == worker_->group().rank()) place = static_cast<int>(i);
        }
        /// What the first rank tells the others: where the group is, or why there is none.
        struct Notice {
            std::uint64_t offset = 0;
            char reason[504] = {};
        } notice;
        auto* bytes = reinterpret_cast<std::byte*>(&notice);
        guarded([&] {
            const Limits limits{seconds, interrupted};
            const auto pass_on = [&](bool sending, int peer) {
                const auto letter = make_letter(~0u, sending, peer, key, bytes, sizeof notice);
                job_->mailbox->post(letter, seconds);
                job_->mailbox->wait(letter, limits);
            };
            if (place != 0) {
                pass_on(false, ranks.front());
                notice.reason[sizeof notice.reason - 1] = 0;
                if (notice.offset == 0)
                    throw Failure(Fault::memory, format("rank %d found no memory for the new group: %s",
                                                        ranks.front(), notice.reason), {ranks.front()});
                return;
            }
            std::optional<Failure> failure;
            try {
                notice.offset = Group::prepare(*job_->arena, world, false);
            } catch (const Failure& caught) {
                failure = caught;
                caught.text.copy(notice.reason, sizeof notice.reason - 1);
            }
            for (std::size_t i = 1; i < ranks.size(); ++i) pass_on(true, ranks[i]);
            if (failure) throw Failure(*failure);
        });
        return std::make_unique<Communicator>(job_, notice.offset, place, static_cast<int>(ranks.size()));
    }

    void close(double drain_seconds) {
        if (birth_.foreign()) return;
        guarded([&] { worker_->close(drain_seconds); });
    }

private:
    static Request request(int verb, std::uintptr_t source, std::uintptr_t target,
                           std::uint64_t count, int dtype, std::uint32_t item, int op, double factor,
                           int root) {
        Request made;
        made.verb = static_cast<Verb>(verb);
        made.dtype = static_cast<DType>(dtype);
        made.dtype_code = static_cast<std::uint8_t>(dtype);
        made.item = item;
        made.op = static_cast<ReduceOp>(op);
        made.factor = factor;
        made.root = root;
        made.source = reinterpret_cast<const std::byte*>(source);
        made.target = reinterpret_cast<std::byte*>(target);
        made.count = count;
        return made;
    }

    std::optional<Pending> launch(Request made, double seconds, bool blocking) {
        check_place(birth_);
        if (!blocking)
            return Pending{guarded([&] { return worker_->start(std::move(made), seconds); }), nullptr};
        guarded([&] { worker_->run(made, {seconds, interrupted}); });
        return std::nullopt;
    }

    std::shared_ptr<Letter> make_letter(std::uint32_t context, bool sending, int peer,
                                        std::int64_t tag, std::byte* data, std::size_t bytes) const {
        auto letter = std::make_shared<Letter>();
        letter->sending = sending;
        letter->peer = peer;
        letter->directory = worker_->group().directory();
        letter->context = context;
        letter->tag = tag;
        letter->data = data;
        letter->bytes = bytes;
        return letter;
    }

    std::shared_ptr<Job> job_;
    std::unique_ptr<Worker> worker_;
    Birth birth_;
};

/// Makes the memory of a job of `size` ranks, its world group included; returns the descriptor.
int create(int size) {
    return guarded([&] {
        const int fd = Arena::create(size);
        Arena arena(dup(fd));
        std::vector<int> ranks;
        for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
        try {
            Group::prepare(arena, ranks, true);
        } catch (...) {
            close(fd);
            throw;
        }
        return fd;
    });
}

nb::dict tables() {
    nb::dict dtypes, operators, verbs;
    for (int code = 0; code < 20; ++code) dtypes[name(static_cast<DType>(code))] = code;
    for (int code = 0; code < 9; ++code) operators[name(static_cast<ReduceOp>(code))] = code;
    for (int code = 1; code < 12; ++code) verbs[name(static_cast<Verb>(code))] = code;
    nb::dict all;
    all["dtypes"] = dtypes;
    all["operators"] = operators;
    all["verbs"] = verbs;
    return all;
}

}  // namespace
}  // namespace unisono

NB_MODULE(_native, m) {
    using namespace unisono;
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    m.doc() = "Collectives between processes of one host, over shared memory.";
    m.def("create", &create, "size"_a);
    m.def("isa", [] { return kernels().isa; });
    m.def("tables", &tables);
    nb::class_<Pending>(m, "Pending")
        .def("done", [](const Pending& self) { return self.completion->done(); })
        .def("wait", &Pending::wait, "seconds"_a)
        .def("check", &Pending::check)
        .def_prop_ro("source", [](const Pending& self) {
            return self.letter == nullptr ? -1 : self.letter->source;
        });
    nb::class_<Job>(m, "Job")
        .def(nb::init<int, int>(), "fd"_a, "rank"_a)
        .def("meet", [](Job& self) { guarded([&] { self.meet(); }); })
        .def("crowded", [](const Job& self) { return self.arena->crowded(); })
        .def("world_offset", [](const Job& self) { return self.arena->world_offset(); })
        .def("close", [](Job& self, double drain_seconds) {
            if (self.birth.foreign()) return;
            guarded([&] { if (self.mailbox) self.mailbox->close(drain_seconds); });
        }, "drain_seconds"_a);
    nb::class_<Communicator>(m, "Communicator")
        .def(nb::init<std::shared_ptr<Job>, std::size_t, int, int>(), "job"_a, "offset"_a, "rank"_a, "size"_a)
        .def("collective", &Communicator::collective)
        .def("collective_uneven", &Communicator::collective_uneven)
        .def("message", &Communicator::message)
        .def("split", &Communicator::split, "ranks"_a, "key"_a, "seconds"_a)
        .def("close", &Communicator::close, "drain_seconds"_a);
}
