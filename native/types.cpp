// native/types.cpp: names and texts for error messages.
#include "types.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>

namespace unisono {

const char* name(DType dtype) noexcept {
    static constexpr std::array names{
        "bool",          "int8",        "int16",           "int32",           "int64",
        "uint8",         "uint16",      "uint32",          "uint64",          "float16",
        "bfloat16",      "float32",     "float64",         "complex64",       "complex128",
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"};
    const auto code = static_cast<std::size_t>(dtype);
    return code < names.size() ? names[code] : "unknown";
}

const char* name(ReduceOp op) noexcept {
    static constexpr std::array names{"sum", "product", "min", "max",        "band",
                                      "bor", "bxor",    "avg", "premul_sum", ""};
    const auto code = static_cast<std::size_t>(op);
    return code < names.size() ? names[code] : "unknown";
}

const char* name(Verb verb) noexcept {
    static constexpr std::array names{"no call",        "broadcast", "reduce",     "all_reduce",
                                      "reduce_scatter", "gather",    "all_gather", "scatter",
                                      "all_to_all",     "barrier",   "send",       "recv"};
    const auto code = static_cast<std::size_t>(verb);
    return code < names.size() ? names[code] : "unknown";
}

std::string format(const char* pattern, ...) {
    std::va_list arguments;
    va_start(arguments, pattern);
    std::va_list again;
    va_copy(again, arguments);
    std::string text(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, pattern, arguments)),
                     '\0');
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
    va_end(again);
    va_end(arguments);
    return text;
}

Failure damaged(const std::string& what) {
    return {FailureKind::system, "the job's memory is damaged: " + what + "; restart the job"};
}

std::string name_ranks(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < ranks.size(); ++i)
        text += format("%s %d", i == 0 ? "" : ",", ranks[i]);
    return text;
}

}  // namespace unisono
