// native/bind.cpp: the Python module. Converts arguments, releases the GIL, calls one function, and
// raises a Failure as a class of unisono.errors. Only this file, fast_*.cpp, native_method.cpp,
// tensor.cpp, torch_options.cpp, numpy_allocator.cpp and the headers that these share use Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "call_site.hpp"
#include "communicator.hpp"
#include "inspector.hpp"
#include "interpreter.hpp"
#include "kernels.hpp"
#include "numpy_allocator.hpp"
#include "python_call.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace unisono {

nb::object text_or_none(const std::string& text) {
    if (text.empty()) return nb::none();
    return nb::steal(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

void set_error(const Failure& failure) {
    if (failure.kind == FailureKind::interrupted && PyErr_Occurred() != nullptr) return;
    const char* name = "UnisonoError";
    switch (failure.kind) {
        case FailureKind::mismatch:
            name = "MismatchError";
            break;
        case FailureKind::lost:
            name = "PeerLost";
            break;
        case FailureKind::timeout:
            name = "CommTimeout";
            break;
        case FailureKind::memory:
            name = "OutOfSharedMemory";
            break;
        case FailureKind::closed:
            name = "NotReady";
            break;
        case FailureKind::system:
            name = "LaunchError";
            break;
        case FailureKind::interrupted:
            break;
    }
    try {
        const nb::object type = nb::module_::import_("unisono.errors").attr(name);
        const nb::object error = type(text_or_none(failure.text), failure.ranks);
        PyErr_SetObject(type.ptr(), error.ptr());
    } catch (nb::python_error& other) {
        other.restore();  // Ctrl-C has come while the error was made
    }
}

namespace {

/// What every collective has.
CallArguments make_arguments(int verb, std::uint64_t count, int dtype, int op, double factor,
                             int root, bool backward, std::uintptr_t source,
                             std::uintptr_t target) {
    CallArguments arguments;
    arguments.verb = static_cast<Verb>(verb);
    arguments.dtype = static_cast<DType>(dtype);
    arguments.dtype_code = static_cast<std::uint8_t>(dtype);
    arguments.op = static_cast<ReduceOp>(op);
    arguments.factor = factor;
    arguments.root = root;
    arguments.backward = backward;
    arguments.source = reinterpret_cast<const std::byte*>(source);
    arguments.target = reinterpret_cast<std::byte*>(target);
    arguments.count = count;
    return arguments;
}

/// Runs or starts a collective; None if it is complete.
std::optional<CallHandle> run_or_start(Communicator& self, CallArguments arguments, double seconds,
                                       bool blocking) {
    arguments.call_site = CallSiteFinder::current();
    if (!blocking)
        return CallHandle{guarded([&] { return self.start(std::move(arguments), seconds); }),
                          nullptr};
    guarded([&] { self.run(arguments, {seconds, interrupted}); });
    return std::nullopt;
}

/// Runs a collective whose counts differ by rank.
void collective_uneven(Communicator& self, int verb, std::uintptr_t source, std::uintptr_t target,
                       std::uint64_t count, int dtype, std::uint32_t item_bytes, int op,
                       double factor, int root, double seconds, bool backward,
                       std::vector<std::uint64_t> sends, std::vector<std::uint64_t> receives) {
    CallArguments arguments =
        make_arguments(verb, count, dtype, op, factor, root, backward, source, target);
    arguments.item_bytes = item_bytes;
    arguments.sends = std::move(sends);
    arguments.receives = std::move(receives);
    run_or_start(self, std::move(arguments), seconds, true);
}

/// The same for equal counts.
void collective(Communicator& self, int verb, std::uintptr_t source, std::uintptr_t target,
                std::uint64_t count, int dtype, std::uint32_t item_bytes, int op, double factor,
                int root, double seconds, bool backward) {
    collective_uneven(self, verb, source, target, count, dtype, item_bytes, op, factor, root,
                      seconds, backward, {}, {});
}

/// Runs or starts a collective on a GPU: ranks compare it and tell each other `bytes`.
std::optional<CallHandle> tell(Communicator& self, int verb, std::uint64_t count, int dtype, int op,
                               double factor, int root, bool backward, std::uintptr_t source,
                               std::uintptr_t target, std::uint32_t bytes, double seconds,
                               bool blocking) {
    CallArguments arguments =
        make_arguments(verb, count, dtype, op, factor, root, backward, source, target);
    arguments.told_bytes = bytes;
    return run_or_start(self, std::move(arguments), seconds, blocking);
}

/// Starts a collective; `used` stays alive until it has ended. The counts are empty if equal.
CallHandle start(Communicator& self, int verb, std::uintptr_t source, std::uintptr_t target,
                 std::uint64_t count, int dtype, std::uint32_t item_bytes, int op, double factor,
                 int root, double seconds, bool backward, nb::object used,
                 std::vector<std::uint64_t> sends, std::vector<std::uint64_t> receives) {
    KeptUntilDone::sweep();
    CallArguments arguments =
        make_arguments(verb, count, dtype, op, factor, root, backward, source, target);
    arguments.item_bytes = item_bytes;
    arguments.sends = std::move(sends);
    arguments.receives = std::move(receives);
    CallHandle handle = *run_or_start(self, std::move(arguments), seconds, false);
    handle.kept = {std::move(used), handle.completion, false};
    return handle;
}

/// Waits for a call of this group; whether it has ended well. What went wrong is for check().
bool finish(Communicator& self, CallHandle& handle) {
    if (handle.transfer != nullptr)
        handle.wait(1e18);
    else if (!handle.completion->done())
        guarded([&] { self.finish(handle.completion, {1e18, interrupted}); });
    handle.kept = {};
    return handle.completion->failure() == nullptr;
}

/// Sends or receives a message; with `blocking` it is complete on return.
CallHandle point_to_point(Communicator& self, bool sending, std::uintptr_t data,
                          std::uint64_t count, int dtype, std::uint32_t item_bytes, int peer,
                          std::int64_t tag, double seconds, bool blocking) {
    const auto transfer = self.transfer(sending, peer, tag);
    transfer->data = reinterpret_cast<std::byte*>(data);
    transfer->bytes = count * item_bytes;
    transfer->dtype_code = static_cast<std::uint8_t>(dtype);
    transfer->item_bytes = item_bytes;
    transfer->recorded = true;
    transfer->call_site = CallSiteFinder::current();
    guarded([&] {
        if (blocking)
            self.run(transfer, {seconds, interrupted});
        else
            self.start(transfer, seconds);
    });
    return {std::shared_ptr<Completion>(transfer, &transfer->completion), transfer};
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
nb::tuple record_tuple(const Record& record, const std::string& call_site) {
    const CallDescriptor& call = record.call;
    const auto number = [](bool known, auto value) -> nb::object {
        return known ? nb::object(nb::int_(value)) : nb::none();
    };
    const bool moves = call.verb != Verb::barrier;
    return nb::make_tuple(
        record.sequence, record.group, number(call.number != 0, call.number), name(call.verb),
        text_or_none(moves ? name(static_cast<DType>(call.dtype)) : ""), number(moves, call.count),
        text_or_none(name(call.op)), number(!call.is_message() && call.root >= 0, call.root),
        number(call.is_message() && call.root >= 0, call.root), text_or_none(call_site),
        record.began, number(record.ended != 0, record.ended), name(record.state));
}

/// For each rank: pid, state, records, and the world ranks that its call waits for (or None).
/// All ranks are read before anything is converted: the calls of a busy rank are soon replaced.
nb::list snapshot_all(const JobInspector& inspector) {
    std::vector<RankSnapshot> snapshots;
    guarded([&] {
        for (int rank = 0; rank < inspector.size(); ++rank)
            snapshots.push_back(inspector.snapshot(rank));
    });
    nb::list ranks;
    for (const RankSnapshot& snapshot : snapshots) {
        nb::list calls;
        for (const auto& [record, call_site] : snapshot.calls)
            calls.append(record_tuple(record, call_site));
        ranks.append(nb::make_tuple(snapshot.pid, snapshot.state, calls, snapshot.missing));
    }
    return ranks;
}

/// Handles signals now; what a handler raises is raised again when this thread is back in Python
/// code. For code whose caller loses every exception.
void postpone_interrupt() {
    if (PyErr_CheckSignals() == 0) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(traceback);
    Py_DECREF(type);
    const auto raise_it = [](void* error) {
        auto* exception = static_cast<PyObject*>(error);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
        Py_DECREF(exception);
        return -1;
    };
    if (Py_AddPendingCall(raise_it, value) != 0) Py_DECREF(value);  // too many are pending
}

/// A function that says which tensors the value of a future holds, as torch's own `otherwise` does,
/// which is for all values but lists of plain tensors. It raises the text of a failure. C++ calls
/// it, and makes a text of all exceptions, Ctrl-C too.
nb::object tensor_extractor(nb::object tensor_type, nb::object failure_type, nb::object otherwise) {
    return nb::cpp_function([tensor_type, failure_type, otherwise](nb::object value) -> nb::object {
        if (PyList_CheckExact(value.ptr())) {
            bool plain = true;
            for (const nb::handle item : nb::borrow<nb::list>(value))
                plain = plain && item.type().is(tensor_type);
            if (plain) return value;
        }
        postpone_interrupt();
        if (!value.type().is(failure_type)) return otherwise(value);
        const nb::object text = value.attr("text");
        PyErr_SetObject(PyExc_RuntimeError, text.ptr());
        throw nb::python_error();
    });
}

/// A part of the job's file that Python code of several ranks writes to; see engines/cuda.
struct SharedBlock {
    std::shared_ptr<Mapping> mapping;

    std::uintptr_t address() const noexcept {
        return reinterpret_cast<std::uintptr_t>(mapping->data());
    }
};

/// Whole pages of the job's file, for good: only the end of the job returns them.
std::size_t allocate_block(Arena& arena, std::size_t bytes) {
    bytes = round_up(bytes, page);
    const std::size_t offset = arena.allocate(bytes);
    arena.commit(offset, bytes);
    return offset;
}

/// An object that NumPy's C functions made, or their error.
nb::object owned(PyObject* object) {
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

/// The numeric codes that Python passes to us, by name.
nb::dict codes() {
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
    // A failed call may stay alive until Python exits (a future of torch keeps it by its
    // traceback). The user can do nothing about that, and the warning would hide the error above
    // it.
    nb::set_leak_warnings(false);
#endif
    CallSiteFinder::prepare();
    Interpreter::prepare();
    run_blocking = [](void (*body)(void*) noexcept, void* context) noexcept {
        std::optional<Interpreter::Unlocked> unlocked;
        if (PyGILState_Check() != 0) unlocked.emplace();
        body(context);
    };
    m.def(
        "create_job_memory",
        [](int size) { return guarded([&] { return SharedJob::create(size); }); }, "size"_a);
    m.def("instruction_set", [] { return guarded([] { return kernels().isa; }); });
    m.def("codes", &codes);
    m.def(
        "set_array_handler",
        [](nb::object handler) { return owned(set_array_handler(handler.ptr())); }, "handler"_a);
    m.def("take_refusal", [] { return text_or_none(take_refusal()); });
    nb::class_<CallHandle>(m, "CallHandle")
        .def("done", [](const CallHandle& self) { return self.completion->done(); })
        .def("wait", &CallHandle::wait, "seconds"_a)
        .def("check", &CallHandle::check)
        .def("on_done", &CallHandle::on_done)
        .def_prop_ro("source", &CallHandle::source);
    nb::class_<SharedBlock>(m, "SharedBlock").def_prop_ro("address", &SharedBlock::address);
    nb::class_<SharedJob>(m, "SharedJob")
        .def(
            "__init__",
            [](SharedJob* self, int fd, int rank) {
                guarded([&] { new (self) SharedJob(fd, rank); });
            },
            "fd"_a, "rank"_a)
        .def("connect_peers", [](SharedJob& self) { guarded([&] { self.connect_peers(); }); })
        .def("announce_exit", &SharedJob::announce_exit)
        .def("snapshot",
             [](SharedJob& self) {
                 return snapshot_all(*guarded([&] { return self.inspector(); }));
             })
        .def("claim_trace_write",
             [](const SharedJob& self) { return self.arena()->claim_trace_write(); })
        .def("finish_trace_write",
             [](const SharedJob& self) { self.arena()->finish_trace_write(); })
        .def("trace_is_written",
             [](const SharedJob& self) { return self.arena()->trace_is_written(); })
        .def(
            "array_handler",
            [](SharedJob& self, std::size_t minimum) {
                return owned(make_array_handler(guarded([&] { return self.heap(); }), minimum));
            },
            "minimum"_a)
        .def("array_bytes",
             [](SharedJob& self) {
                 const auto heap = guarded([&] { return self.heap(); });
                 return nb::make_tuple(heap->used_bytes(), heap->kept_bytes());
             })
        .def("world_offset", [](const SharedJob& self) { return self.arena()->world_offset(); })
        .def(
            "allocate_block",
            [](SharedJob& self, std::size_t bytes) {
                return guarded([&] { return allocate_block(*self.arena(), bytes); });
            },
            "nbytes"_a)
        .def(
            "map_block",
            [](SharedJob& self, std::size_t offset, std::size_t bytes) {
                return guarded(
                    [&] { return SharedBlock{self.arena()->map(offset, round_up(bytes, page))}; });
            },
            "offset"_a, "nbytes"_a)
        .def(
            "exit_reason",
            [](SharedJob& self, int rank) {
                return guarded([&]() -> std::optional<std::string> {
                    // Relaxed: a rank that has left without its part of a call has told so.
                    const bool left =
                        self.arena()->rank_info(rank).left.load(std::memory_order_relaxed) != 0;
                    if (left || self.arena()->alive(rank)) return std::nullopt;
                    return self.arena()->exit_reason(rank);
                });
            },
            "rank"_a)
        .def(
            "close", [](SharedJob& self, double seconds) { guarded([&] { self.close(seconds); }); },
            "drain_seconds"_a);
    nb::class_<JobInspector>(m, "JobInspector")
        .def(
            "__init__",
            [](JobInspector* self, int fd) { guarded([&] { new (self) JobInspector(fd); }); },
            "fd"_a)
        .def_prop_ro("size", &JobInspector::size)
        .def("snapshot", &snapshot_all);
    add_fast_calls(m);
    nb::class_<Communicator>(m, "Communicator")
        .def(
            "__init__",
            [](Communicator* self, std::shared_ptr<SharedJob> job, std::size_t offset, int rank,
               int size) {
                guarded([&] { new (self) Communicator(std::move(job), offset, rank, size); });
            },
            "job"_a, "offset"_a, "rank"_a, "size"_a)
        .def("collective", &collective)
        .def("start", &start)
        .def("finish", &finish)
        .def_static("tensor_extractor", &tensor_extractor, "tensor_type"_a, "failure_type"_a,
                    "otherwise"_a)
        .def("collective_uneven", &collective_uneven)
        .def("tell", &tell)
        .def("point_to_point", &point_to_point)
        .def_prop_rw("seconds", &Communicator::seconds, &Communicator::set_seconds)
        .def("split", &split, "ranks"_a, "key"_a, "seconds"_a)
        .def("shrink", &shrink, "exclude"_a, "seconds"_a)
        .def_prop_ro("world_ranks", &Communicator::world_ranks)
        .def(
            "close",
            [](Communicator& self, double seconds) { guarded([&] { self.close(seconds); }); },
            "drain_seconds"_a);
}
