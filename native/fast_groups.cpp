// native/fast_groups.cpp: what Python tells us: groups, the world, operators, tensors, hooks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "fast_call.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace unisono {

constinit thread_local bool backward_pass = false;

State& state() {
    static auto* instance = new State;
    return *instance;
}

FastGroup* group_of(PyObject* given) {
    State& known = state();
    if (is_profiled()) return nullptr;
    if (given == Py_None) return known.world;
    if (known.world == nullptr) return nullptr;
    if (PyUnicode_CheckExact(given)) {
        if (PySet_Contains(known.world_names.ptr(), given) == 1) return known.world;
        given = PyDict_GetItemWithError(known.named.ptr(), given);
        if (given == nullptr) return nullptr;
    }
    for (const auto& group : known.groups)
        if (group->group.ptr() == given) return group.get();
    return nullptr;
}

const Operator* operator_of(PyObject* given, const ElementType& type) {
    for (const Operator& known : state().operators)
        if (known.key.ptr() == given)
            return (type.operators >> static_cast<int>(known.op) & 1) != 0 ? &known : nullptr;
    return nullptr;
}

std::optional<std::int64_t> integer_of(PyObject* given) {
    if (!PyLong_CheckExact(given)) return std::nullopt;
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow != 0) return std::nullopt;
    return value;
}

std::optional<int> rank_of(const FastGroup& group, PyObject* world_rank, PyObject* group_rank) {
    if ((world_rank == Py_None) == (group_rank == Py_None)) return std::nullopt;
    const bool of_world = group_rank == Py_None;
    const auto given = integer_of(of_world ? world_rank : group_rank);
    if (!given) return std::nullopt;
    if (!of_world) {
        if (*given < 0 || *given >= group.size) return std::nullopt;
        return static_cast<int>(*given);
    }
    for (int rank = 0; rank < group.size; ++rank)
        if (group.world_ranks[static_cast<std::size_t>(rank)] == *given) return rank;
    return std::nullopt;
}

namespace {

/// (group)
PyObject* get_rank(PyObject*, PyObject* given) {
    const FastGroup* group = group_of(given);
    return group == nullptr ? not_ordinary() : Py_NewRef(group->rank_number.ptr());
}

/// (group)
PyObject* get_size(PyObject*, PyObject* given) {
    const FastGroup* group = group_of(given);
    return group == nullptr ? not_ordinary() : Py_NewRef(group->size_number.ptr());
}

PyObject* is_profiled(PyObject*, PyObject*) { return PyBool_FromLong(unisono::is_profiled()); }

PyMethodDef methods[] = {
    {"is_profiled", &is_profiled, METH_NOARGS, nullptr},
    {"get_rank", &get_rank, METH_O, nullptr},
    {"get_size", &get_size, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

void add_group(nb::object group, nb::object native, int rank, std::vector<int> world_ranks) {
    auto made = std::make_shared<FastGroup>();
    made->group = group;
    made->native = native;
    made->communicator = nb::cast<Communicator*>(native);
    made->rank = rank;
    made->size = static_cast<int>(world_ranks.size());
    made->rank_number = nb::int_(made->rank);
    made->size_number = nb::int_(made->size);
    made->world_ranks = std::move(world_ranks);
    state().groups.push_back(std::move(made));
}

/// Forgets the group of a communicator; others may still be in a call of it.
void remove_group(nb::handle native) {
    State& known = state();
    for (auto& group : known.groups) {
        if (group->native.ptr() != native.ptr()) continue;
        if (known.world == group.get()) known.world = nullptr;
        const auto removed = std::move(group);  // it may be the last owner of Python objects
        std::erase(known.groups, nullptr);
        return;
    }
}

/// The group that None means; None: there is no such group for all threads. And the groups of that
/// world by name, in a dict that Python goes on to change.
void set_world(nb::handle world, nb::dict named) {
    State& known = state();
    std::swap(known.named, named);  // the old one goes at the end: that may run Python code
    known.world = nullptr;
    for (const auto& group : known.groups)
        if (group->group.ptr() == world.ptr()) known.world = group.get();
}

std::uint64_t calls_of(nb::handle native) {
    for (const auto& group : state().groups)
        if (group->native.ptr() == native.ptr()) return group->calls;
    return 0;
}

}  // namespace

void add_fast_groups(nb::module_& fast) {
    PyModule_AddFunctions(fast.ptr(), methods);
    fast.def("add_group", &add_group);
    fast.def("remove_group", &remove_group);
    fast.def("set_world", &set_world, "world"_a.none(), "named"_a);
    fast.def("name_world", [](nb::str name) { state().world_names.add(name); });
    fast.def("calls_of", &calls_of);
    fast.def("set_backward", [](bool backward) { backward_pass = backward; });
    fast.def("set_hooks", [](nb::object failed, nb::object started) {
        state().failed = std::move(failed);
        state().started = std::move(started);
    });
    fast.def("set_probes", [](std::uintptr_t has_profiler, std::uintptr_t has_modes) {
        state().has_profiler = reinterpret_cast<decltype(State::has_profiler)>(has_profiler);
        state().has_modes = reinterpret_cast<decltype(State::has_modes)>(has_modes);
    });
    fast.def("learn_operator", [](nb::object key, int code, double factor) {
        state().operators.push_back({std::move(key), static_cast<ReduceOp>(code), factor});
    });
    fast.def("learn_numpy", [](nb::handle array_type, nb::handle dtype, int code, int item_bytes,
                               std::uint32_t operators) {
        TensorReader::instance().learn_numpy(
            array_type.ptr(), dtype.ptr(),
            {static_cast<std::uint8_t>(code), static_cast<std::uint32_t>(item_bytes), operators});
    });
    fast.def("learn_dlpack", [](int dlpack_code, int bits, int code, int item_bytes,
                                std::uint32_t operators) {
        TensorReader::instance().learn_dlpack(
            dlpack_code, bits,
            {static_cast<std::uint8_t>(code), static_cast<std::uint32_t>(item_bytes), operators});
    });
    fast.def("learn_torch", [](nb::handle tensor_type) {
        return TensorReader::instance().learn_torch(tensor_type.ptr());
    });
}

}  // namespace unisono
