// native/call.cpp: pack, unpack and describe calls.
#include "call.hpp"

#include <bit>

namespace unisono {

namespace {

/// Mixes a word into a hash; good enough that two different calls have different fingerprints.
std::uint64_t mix(std::uint64_t seed, std::uint64_t word) noexcept {
    std::uint64_t x = (seed ^ word) * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
}

}  // namespace

std::uint64_t PackedCall::write(const CallArguments& arguments, std::uint32_t number) noexcept {
    const std::uint64_t kind = static_cast<std::uint64_t>(arguments.verb) |
                               static_cast<std::uint64_t>(arguments.dtype_code) << 8 |
                               static_cast<std::uint64_t>(arguments.op) << 16 |
                               static_cast<std::uint64_t>(!arguments.sends.empty()) << 24 |
                               static_cast<std::uint64_t>(arguments.backward) << 25 |
                               static_cast<std::uint64_t>(arguments.on_gpu()) << 26;
    const std::uint64_t root = static_cast<std::uint32_t>(arguments.root);
    const auto factor = std::bit_cast<std::uint64_t>(arguments.factor);
    // Relaxed: the store of the turn in Group::barrier() orders them.
    words[0].store(kind, std::memory_order_relaxed);
    words[1].store(root << 32 | number, std::memory_order_relaxed);
    words[2].store(arguments.count, std::memory_order_relaxed);
    words[3].store(factor, std::memory_order_relaxed);
    return mix(mix(mix(mix(1, kind), root), arguments.count), factor);
}

CallDescriptor::CallDescriptor(const PackedCall& packed) noexcept {
    const std::uint64_t kind = packed.words[0].load(std::memory_order_relaxed);
    const std::uint64_t root_and_number = packed.words[1].load(std::memory_order_relaxed);
    count = packed.words[2].load(std::memory_order_relaxed);
    factor = std::bit_cast<double>(packed.words[3].load(std::memory_order_relaxed));
    verb = static_cast<Verb>(kind & 0xff);
    dtype = static_cast<std::uint8_t>(kind >> 8);
    op = static_cast<ReduceOp>(kind >> 16 & 0xff);
    uneven = (kind >> 24 & 1) != 0;
    backward = (kind >> 25 & 1) != 0;
    on_gpu = (kind >> 26 & 1) != 0;
    root = static_cast<std::int32_t>(root_and_number >> 32);
    number = static_cast<std::uint32_t>(root_and_number);
}

bool CallDescriptor::same_kind(const CallDescriptor& other) const noexcept {
    return verb == other.verb && dtype == other.dtype && op == other.op && root == other.root &&
           backward == other.backward && on_gpu == other.on_gpu &&
           std::bit_cast<std::uint64_t>(factor) == std::bit_cast<std::uint64_t>(other.factor);
}

bool CallDescriptor::has_counts() const noexcept {
    return verb == Verb::reduce_scatter || verb == Verb::gather || verb == Verb::all_gather ||
           verb == Verb::scatter || verb == Verb::all_to_all;
}

std::string CallDescriptor::text() const {
    if (verb == Verb::nothing) return "no call yet";
    std::string text = name(verb);
    if (verb != Verb::barrier) {
        text += format(" %s", name(static_cast<DType>(dtype)));
        if (!uneven) text += format(" x %llu", static_cast<unsigned long long>(count));
    }
    if (op == ReduceOp::premul_sum)
        text += format(" premul_sum(%g)", factor);
    else if (op != ReduceOp::none)
        text += format(" %s", name(op));
    if (is_message()) {
        text += verb == Verb::send ? " to " : " from ";
        return text + (root < 0 ? std::string("any rank") : format("rank %d", root));
    }
    if (root >= 0) text += format(" root %d", root);
    if (backward) text += " (backward)";
    if (on_gpu) text += " on a GPU";
    return text;
}

}  // namespace unisono
