// native/bind.cpp: with bind_places.hpp the only file that knows Python. Converts arguments,
// releases the GIL, calls one function, and turns Failure into the classes of unisono.errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "bind_places.hpp"
#include "communicator.hpp"
#include "kernels.hpp"
#include "viewer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace unisono {
namespace {

/// Whether a signal handler has raised: Ctrl-C during a wait. Runs without the GIL held.
bool interrupted() {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

/// Text that may hold anything, as a string.
nb::object text_or_none(const std::string& text) {
    if (text.empty()) return nb::none();
    return nb::steal(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

[[noreturn]] void raise(const Failure& failure) {
    if (failure.fault == Fault::interrupted && PyErr_Occurred() != nullptr)
        throw nb::python_error();
    const char* name = "UnisonoError";
    switch (failure.fault) {
        case Fault::mismatch:
            name = "MismatchError";
            break;
        case Fault::lost:
            name = "PeerLost";
            break;
        case Fault::timeout:
            name = "CommTimeout";
            break;
        case Fault::memory:
            name = "OutOfSharedMemory";
            break;
        case Fault::closed:
            name = "NotReady";
            break;
        case Fault::system:
            name = "LaunchError";
            break;
        case Fault::interrupted:
            break;
    }
    const nb::object type = nb::module_::import_("unisono.errors").attr(name);
    const nb::object error = type(text_or_none(failure.text), failure.ranks);
    PyErr_SetObject(type.ptr(), error.ptr());
    throw nb::python_error();
}

/// Runs `body` without the GIL and raises what it throws.
template <class Body>
auto guarded(Body body) {
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

/// A call under way, for Python to wait for.
struct Pending {
    std::shared_ptr<Completion> completion;
    std::shared_ptr<Letter> letter;
    Birth birth = {};

    bool wait(double seconds) const {
        return guarded([&] {
            birth.check();
            return completion->wait({seconds, interrupted});
        });
    }
    void check() const {
        if (const Failure* failure = completion->failure()) raise(*failure);
    }
    int source() const { return letter == nullptr ? -1 : letter->source; }
};

/// Runs or starts a collective whose counts differ by rank; None if it has ended.
std::optional<Pending> collective_uneven(Communicator& self, int verb, std::uintptr_t source,
                                         std::uintptr_t target, std::uint64_t count, int dtype,
                                         std::uint32_t item, int op, double factor, int root,
                                         double seconds, bool blocking,
                                         std::vector<std::uint64_t> sends,
                                         std::vector<std::uint64_t> receives) {
    Request request;
    request.verb = static_cast<Verb>(verb);
    request.dtype = static_cast<DType>(dtype);
    request.dtype_code = static_cast<std::uint8_t>(dtype);
    request.item = item;
    request.op = static_cast<ReduceOp>(op);
    request.factor = factor;
    request.root = root;
    request.source = reinterpret_cast<const std::byte*>(source);
    request.target = reinterpret_cast<std::byte*>(target);
    request.count = count;
    request.sends = std::move(sends);
    request.receives = std::move(receives);
    request.place = Places::current();
    if (!blocking)
        return Pending{guarded([&] { return self.start(std::move(request), seconds); }), nullptr};
    guarded([&] { self.run(request, {seconds, interrupted}); });
    return std::nullopt;
}

/// The same with equal counts.
std::optional<Pending> collective(Communicator& self, int verb, std::uintptr_t source,
                                  std::uintptr_t target, std::uint64_t count, int dtype,
                                  std::uint32_t item, int op, double factor, int root,
                                  double seconds, bool blocking) {
    return collective_uneven(self, verb, source, target, count, dtype, item, op, factor, root,
                             seconds, blocking, {}, {});
}

/// Sends or receives; with `blocking` the message has come to its end.
Pending message(Communicator& self, bool sending, std::uintptr_t data, std::uint64_t count,
                int dtype, std::uint32_t item, int peer, std::int64_t tag, double seconds,
                bool blocking) {
    const auto letter = self.letter(sending, peer, tag);
    letter->data = reinterpret_cast<std::byte*>(data);
    letter->bytes = count * item;
    letter->dtype_code = static_cast<std::uint8_t>(dtype);
    letter->item = item;
    letter->recorded = true;
    letter->place = Places::current();
    guarded([&] {
        if (blocking)
            self.run(letter, {seconds, interrupted});
        else
            self.start(letter, seconds);
    });
    return {std::shared_ptr<Completion>(letter, &letter->completion), letter};
}

std::unique_ptr<Communicator> split(Communicator& self, const std::vector<int>& ranks,
                                    std::int64_t key, double seconds) {
    return guarded([&] { return self.split(ranks, key, {seconds, interrupted}); });
}

std::unique_ptr<Communicator> shrink(Communicator& self, const std::vector<int>& exclude,
                                     double seconds) {
    return guarded([&] { return self.shrink(exclude, {seconds, interrupted}); });
}

/// One record as a tuple, in the order of core/trace.py.
nb::tuple record(const Entry& entry, const std::string& place) {
    const Call& call = entry.call;
    const auto number = [](bool known, auto value) -> nb::object {
        return known ? nb::object(nb::int_(value)) : nb::none();
    };
    const bool moves = call.verb != Verb::barrier;
    return nb::make_tuple(
        entry.sequence, entry.group, number(call.number != 0, call.number), name(call.verb),
        text_or_none(moves ? name(static_cast<DType>(call.dtype)) : ""), number(moves, call.count),
        text_or_none(name(call.op)), number(!call.is_message() && call.root >= 0, call.root),
        number(call.is_message() && call.root >= 0, call.root), text_or_none(place), entry.began,
        number(entry.ended != 0, entry.ended), name(entry.state));
}

/// For each rank: pid, state, records, and for whom its call waits (world ranks, or None).
nb::list look(const Viewer& viewer) {
    nb::list ranks;
    for (int rank = 0; rank < viewer.size(); ++rank) {
        const Sight sight = guarded([&] { return viewer.look(rank); });
        nb::list calls;
        for (const auto& [entry, place] : sight.calls) calls.append(record(entry, place));
        ranks.append(nb::make_tuple(sight.pid, sight.state, calls, sight.missing));
    }
    return ranks;
}

/// The codes that Python has to know, by name.
nb::dict tables() {
    nb::dict dtypes, operators, verbs, all;
    for (int code = 0; code < 20; ++code) dtypes[name(static_cast<DType>(code))] = code;
    for (int code = 0; code < 9; ++code) operators[name(static_cast<ReduceOp>(code))] = code;
    for (int code = 1; code < 12; ++code) verbs[name(static_cast<Verb>(code))] = code;
    all["dtypes"] = dtypes;
    all["operators"] = operators;
    all["verbs"] = verbs;
    return all;
}

}  // namespace
}  // namespace unisono

NB_MODULE(_native, m) {
    using namespace unisono;
    m.doc() = "Collectives between processes of one host, over shared memory.";
#ifdef NDEBUG
    // Whoever keeps a failed work to the end (a future of torch does, by its traceback) can do
    // nothing about it, and the report would stand below the error that he has to see.
    nb::set_leak_warnings(false);
#endif
    Places::prepare();
    m.def("create", [](int size) { return guarded([&] { return Job::create(size); }); }, "size"_a);
    m.def("isa", [] { return kernels().isa; });
    m.def("tables", &tables);
    nb::class_<Pending>(m, "Pending")
        .def("done", [](const Pending& self) { return self.completion->done(); })
        .def("wait", &Pending::wait, "seconds"_a)
        .def("check", &Pending::check)
        .def_prop_ro("source", &Pending::source);
    nb::class_<Job>(m, "Job")
        .def(nb::init<int, int>(), "fd"_a, "rank"_a)
        .def("meet", [](Job& self) { guarded([&] { self.meet(); }); })
        .def("crowded", [](const Job& self) { return self.arena()->crowded(); })
        .def("exit", &Job::exit)
        .def("look", [](Job& self) { return look(*guarded([&] { return self.viewer(); })); })
        .def("claim_trace", [](const Job& self) { return self.arena()->claim_trace(); })
        .def("trace_written", [](const Job& self) { self.arena()->note_trace(); })
        .def("trace_is_fresh", [](const Job& self) { return self.arena()->trace_is_fresh(); })
        .def("world_offset", [](const Job& self) { return self.arena()->world_offset(); })
        .def(
            "close", [](Job& self, double seconds) { guarded([&] { self.close(seconds); }); },
            "drain_seconds"_a);
    nb::class_<Viewer>(m, "Viewer")
        .def(
            "__init__", [](Viewer* self, int fd) { guarded([&] { new (self) Viewer(fd); }); },
            "fd"_a)
        .def_prop_ro("size", &Viewer::size)
        .def("look", &look);
    nb::class_<Communicator>(m, "Communicator")
        .def(nb::init<std::shared_ptr<Job>, std::size_t, int, int>(), "job"_a, "offset"_a, "rank"_a,
             "size"_a)
        .def("collective", &collective)
        .def("collective_uneven", &collective_uneven)
        .def("message", &message)
        .def("split", &split, "ranks"_a, "key"_a, "seconds"_a)
        .def("shrink", &shrink, "exclude"_a, "seconds"_a)
        .def_prop_ro("world_ranks", &Communicator::world_ranks)
        .def(
            "close",
            [](Communicator& self, double seconds) { guarded([&] { self.close(seconds); }); },
            "drain_seconds"_a);
}
