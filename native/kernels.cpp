// native/kernels.cpp: chooses the kernels for this processor, once.
#include "kernels.hpp"

#include <cstdlib>
#include <cstring>

#if defined(UNISONO_X86)
#include <immintrin.h>
#endif

namespace unisono {

namespace baseline {
extern const Kernels table;
}
#if defined(UNISONO_X86)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

const Kernels* const* all_kernels(int& count) {
    static const Kernels* tables[3] = {&baseline::table};
    static const int found = [] {
        int tables_found = 1;
#if defined(UNISONO_X86)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
            tables[tables_found++] = &avx2::table;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
                tables[tables_found++] = &avx512::table;
        }
#endif
        return tables_found;
    }();
    count = found;
    return tables;
}

const Kernels& kernels() {
    // If this throws, the next call tries again.
    static const Kernels& chosen = []() -> const Kernels& {
        int count = 0;
        const Kernels* const* tables = all_kernels(count);
        const char* wanted = std::getenv("UNISONO_ISA");
        if (wanted == nullptr || *wanted == 0) return *tables[count - 1];
        std::string names;
        for (int i = 0; i < count; ++i) {
            if (std::strcmp(tables[i]->isa, wanted) == 0) return *tables[i];
            names += (i == 0 ? "" : ", ") + std::string(tables[i]->isa);
        }
        throw Failure(FailureKind::system,
                      format("UNISONO_ISA is '%s', which is not an instruction set that this "
                             "processor can run; set it to one of: %s; or unset it",
                             wanted, names.c_str()));
    }();
    return chosen;
}

void fence() noexcept {
#if defined(UNISONO_X86)
    _mm_sfence();
#endif
}

}  // namespace unisono
